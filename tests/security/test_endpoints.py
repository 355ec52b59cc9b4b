"""Endpoints of strangers: keys and images reach no host that was not allowed, and no answer fills the memory.
All servers are real ones on this machine.
"""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rewardedit.cli import main
from rewardedit.instructions.load import load_parser
from rewardedit.language.endpoint import Endpoint, EndpointError
from rewardedit.language.endpoint_settings import (
    Destination,
    destination,
    destinations,
    is_private,
    require_env_name,
)
from rewardedit.scorer_spec import read_spec
from rewardedit.scorers.vlm_judge import VlmJudge
from rewardedit.untrusted import MAX_BODY_BYTES

CHAT = [[{"role": "user", "content": "hello"}]]
SAID = {"role": "assistant", "content": "good day"}
GOOD = json.dumps({"choices": [{"message": SAID, "finish_reason": "stop"}]}).encode()
KEY = "sk-planted"
Reply = Callable[["Watched"], None]


class Watched(BaseHTTPRequestHandler):
    """Keeps what it is sent, and answers as its server's `reply` does."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append({"path": self.path, "key": self.headers["Authorization"], "body": body})
        try:
            self.server.reply(self)
        except OSError:  # the other side hung up
            self.close_connection = True

    do_GET = do_CONNECT = do_POST

    def answer(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, reply: Reply) -> None:
        super().__init__(("127.0.0.1", 0), Watched)
        self.reply = reply
        self.seen: list[dict[str, Any]] = []
        self.sent = 0  # bytes of a body without an end
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Starts servers; a key is in the environment, and no proxy."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    servers: list[Server] = []

    def start(reply: Reply = lambda handler: handler.answer(200, GOOD)) -> Server:
        servers.append(Server(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


# Where keys go.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(serve, status):
    elsewhere = serve()
    server = serve(lambda handler: handler.answer(status, Location=f"{elsewhere.root}/v1/chat/completions"))
    endpoint = Endpoint(server.url, "m", "OPENAI_API_KEY", retries=3, pause=0.001)
    (refused,) = endpoint.answer(CHAT)
    assert isinstance(refused, EndpointError)
    assert refused.status == status
    assert elsewhere.seen == [], "neither the key nor the chat"
    assert [one["key"] for one in server.seen] == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    "place", ["http://[", "http://h\x00st/", "file:///etc/passwd", "//", "\x1b[2J", "x" * 9000]
)
def test_a_redirect_to_nowhere_is_a_refusal(serve, place):
    server = serve(lambda handler: handler.answer(302, Location=place))
    (refused,) = Endpoint(server.url, "m", retries=0).answer(CHAT)
    assert isinstance(refused, EndpointError)
    assert refused.status == 302


def test_openai_s_key_goes_to_others_only_where_it_is_named(serve):
    server = serve()
    assert Endpoint(server.url, "m").answer(CHAT) == ["good day"], "a server without a key keeps working"
    assert [one["key"] for one in server.seen] == [None]
    assert Endpoint(server.url, "m", "OPENAI_API_KEY").answer(CHAT) == ["good day"]
    assert server.seen[-1]["key"] == f"Bearer {KEY}"


def test_a_refusal_without_a_key_says_how_one_is_sent(serve, monkeypatch):
    server = serve(lambda handler: handler.answer(401))
    with pytest.raises(
        EndpointError, match="no key was sent: name the environment variable that holds it as "
    ):
        Endpoint(server.url, "m").answer(CHAT)
    monkeypatch.delenv("MISTRAL_API_KEY", raising=False)
    with pytest.raises(EndpointError, match="no key was sent: set MISTRAL_API_KEY"):
        Endpoint(server.url, "m", "MISTRAL_API_KEY").answer(CHAT)


def test_a_host_beyond_private_networks_is_sent_no_key_in_plain_text(serve, monkeypatch):
    proxy = serve()  # sees what would go out
    monkeypatch.setenv("http_proxy", proxy.root)
    assert Endpoint("http://models.example.com/v1", "m").answer(CHAT) == ["good day"]
    assert [(one["path"], one["key"]) for one in proxy.seen] == [
        ("http://models.example.com/v1/chat/completions", None)
    ]
    with pytest.raises(
        ValueError, match=r"endpoint models.example.com: expected https, as a key would be sent"
    ):
        Endpoint("http://models.example.com/v1", "m", "OPENAI_API_KEY")
    with pytest.raises(ValueError, match=r"endpoint api.openai.com: expected https"):
        Endpoint("http://api.openai.com/v1", "m")
    assert len(proxy.seen) == 1


def test_a_proxy_does_not_see_what_a_server_of_this_machine_is_sent(serve, monkeypatch):
    proxy, server = serve(), serve()
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy.root)
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{server.server_port}/v1"
        assert Endpoint(url, "m", "OPENAI_API_KEY").answer(CHAT) == ["good day"]
    assert len(server.seen) == 2
    assert proxy.seen == []


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("localhost", True),
        ("models.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("10.1.2.3", True),
        ("172.16.0.9", True),
        ("172.31.255.1", True),
        ("192.168.1.20", True),
        ("169.254.7.7", True),
        ("fe80::1", True),
        ("fd00::5", True),
        ("::ffff:10.0.0.1", True),
        ("gpu-box", True),
        ("vllm.models.svc.cluster.local", True),
        ("judge.internal", True),
        ("172.32.0.1", False),
        ("192.169.1.1", False),
        ("8.8.8.8", False),
        ("2001:4860:4860::8888", False),
        ("::ffff:8.8.8.8", False),
        ("0.0.0.0", False),
        ("2130706433", False),  # a number to some systems: it may be anybody's
        ("134744072", False),
        ("0x08080808", False),
        ("127.1", False),
        ("10.1", False),
        ("example.com", False),
        ("localhost.example.com", False),
        ("local", True),
        ("notlocal.com", False),
        ("evil-local", True),  # of one word: no public name
        ("10.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_private_hosts(host, private):
    assert is_private(host) is private


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN"),
        *("GH_TOKEN", "AZURE_CLIENT_KEY", "GOOGLE_OAUTH_ACCESS_TOKEN", "WANDB_API_KEY", "NPM_TOKEN"),
        *("DJANGO_SECRET_KEY", "SSH_PRIVATE_KEY", "STRIPE_API_KEY", "CI_JOB_TOKEN", "SLACK_BOT_TOKEN"),
        *("PATH", "HOME", "KEY", "TOKEN", "DATABASE_URL", "PGPASSWORD", "KEYRING", "MISTRAL_KEYS"),
        *("_KEY", "sk-sesame", "mistral_api_key", "", "A B_KEY", "AKIAIOSFODNN7EXAMPLE", "MISTRAL_API_KEY\n"),
    ],
)
def test_variables_of_other_secrets_are_refused(name):
    with pytest.raises(
        ValueError, match=r"^key_variable: expected .*; .*REWARDEDIT_KEY_VARIABLES|perhaps the key"
    ):
        require_env_name(name)


@pytest.mark.parametrize(
    "name",
    ["OPENAI_API_KEY", "MISTRAL_API_KEY", "MY_KEY", "TOGETHER_API_TOKEN", "VLLM_KEY", "DEEPSEEK_API_KEY"],
)
def test_variables_of_models_keys_are_taken(name):
    assert require_env_name(name) is None, "and nothing is raised"


def test_the_user_can_list_other_variables(monkeypatch):
    monkeypatch.setenv("REWARDEDIT_KEY_VARIABLES", "HF_TOKEN, AZURE_OPENAI_API_KEY")
    for name in ("HF_TOKEN", "AZURE_OPENAI_API_KEY"):
        require_env_name(name)
    with pytest.raises(ValueError, match="got AWS_SESSION_TOKEN, which holds another service's secret"):
        require_env_name("AWS_SESSION_TOKEN")


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN"])
def test_another_service_s_secret_is_sent_by_no_recipe_spec_or_call(
    serve, monkeypatch, tmp_path, capfd, name
):
    server = serve()
    monkeypatch.setenv(name, KEY)
    options = {"checkpoint": f"{server.url}#m", "key_variable": name}
    spec = json.dumps({"vlm_judge": options})
    message = f"key_variable: expected .*; got {name}, which holds another service's secret"
    for call in (
        lambda: Endpoint(server.url, "m", name),
        lambda: VlmJudge.from_pretrained(**options),
        lambda: load_parser(f"{server.url}#m", options={"key_variable": name}),
        lambda: read_spec({"vlm_judge": options}),
        lambda: read_spec({"bpm": {"parser": f"{server.url}#m", "parser_options": {"key_variable": name}}}),
        lambda: destinations(options),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    words = [f"relabel.scorer={spec}", "--out", str(tmp_path / "run")]
    train = ["train", "quickstart", *words]
    for command in (train, [*train, "--dry-run"], ["relabel", "data.limit=2", *words]):
        assert main(command) == 2
        assert f"got {name}" in capfd.readouterr().err
    score = ["score", "name=shapes", "limit=1", "--scorer", spec, "--out", str(tmp_path / "scores.json")]
    assert main(score) == 2
    assert f"got {name}" in capfd.readouterr().err
    assert server.seen == []


def test_where_a_setting_sends_to_is_told_beforehand(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("MISTRAL_API_KEY", raising=False)
    openai = Destination("api.openai.com", "OPENAI_API_KEY", True)
    assert destination("https://api.openai.com/v1") == openai
    assert destination("https://eu.api.openai.com/v1").sends_key
    assert destination("https://api.openai.com.example.com/v1").key_variable is None
    assert destination("http://localhost:8000/v1") == Destination("localhost:8000", None, False)
    assert destinations(
        {
            "vlm_judge": {"checkpoint": "https://Models.example.com/v1#m", "key_variable": "MISTRAL_API_KEY"},
            "bpm": {
                "parser": "https://b.example.com/v1#m",
                "parser_options": {"key_variable": "OPENAI_API_KEY"},
            },
            "more": ["https://api.openai.com/v1#m", {"checkpoint": "here/model", "weight": 1}],
        }
    ) == [
        Destination("models.example.com", "MISTRAL_API_KEY", False),
        Destination("b.example.com", "OPENAI_API_KEY", True),
        openai,
    ]
    assert Endpoint("https://api.openai.com/v1", "m").destination == openai
    assert str(openai) == "api.openai.com, with the key in OPENAI_API_KEY"
    assert str(destination("http://gpu:1/v1")) == "gpu:1, with no key"
    assert KEY not in repr(openai)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://localhost/v1", "file:///etc/passwd", "http://", "http:///v1", "http://localhost:0/v1"),
        *(
            "http://localhost:99999/v1",
            "http://localhost:port/v1",
            "http://h ost/v1",
            "http://localhost/\r\nX: y",
        ),
        *(
            "http://localhost/v1\x00",
            "http://[::1/v1",
            "http://ex\u00e4mple.com/v1",
            "http://localhost\\@a/v1",
        ),
        *("https://a@localhost/v1", "http://localhost/v1?key=1", "localhost:8000/v1", ""),
    ],
)
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(ValueError, match="endpoint: expected an address such as http://localhost:8000/v1"):
        Endpoint(url, "m")


# What comes back.


def without_end(piece: bytes, **headers: str) -> Reply:
    """Sends a piece again and again, until the other side hangs up or four times the cap is sent."""

    def reply(handler: Watched) -> None:
        handler.send_response(int(headers.get("status", 200)))
        for name, value in headers.items():
            if name != "status":
                handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        while handler.server.sent < 4 * MAX_BODY_BYTES:
            handler.wfile.write(piece)
            handler.server.sent += len(piece)

    return reply


CHUNK = b"10000\r\n" + b" " * 2**16 + b"\r\n"


@pytest.mark.parametrize(
    "reply",
    [
        without_end(b" " * 2**16),
        without_end(CHUNK, Transfer_Encoding="chunked"),
        without_end(b"-1\r\n" + b" " * 2**16, Transfer_Encoding="chunked"),
        without_end(b" " * 2**16, Content_Length=str(10**12)),
        without_end(b" " * 2**16, Content_Length="9" * 5000),
        without_end(b" " * 2**16, status="400"),
        without_end(CHUNK, status="400", Transfer_Encoding="chunked"),
    ],
)
def test_an_answer_without_an_end_ends_at_the_cap(serve, reply):
    server = serve(reply)
    (answer,) = Endpoint(server.url, "m", retries=0).answer(CHAT)
    assert isinstance(answer, EndpointError)
    assert "longer than 16 MiB" in str(answer) or answer.status == 400
    assert not answer.may_pass, "a reason for its row"
    assert server.sent < 4 * MAX_BODY_BYTES


def test_what_is_compressed_is_not_unpacked(serve):
    bomb = gzip.compress(b" " * 2**24)
    server = serve(lambda handler: handler.answer(200, bomb, Content_Encoding="gzip"))
    (answer,) = Endpoint(server.url, "m", retries=0).answer(CHAT)
    assert isinstance(answer, EndpointError)
    assert "expected a chat completion" in str(answer)


def many_lines(handler: Watched) -> None:
    handler.send_response(200)
    for number in range(5000):
        handler.send_header(f"X-{number}", "x" * 100)
    handler.end_headers()


def long_line(handler: Watched) -> None:
    handler.send_response(200)
    handler.send_header("X", "x" * 2**20)
    handler.end_headers()


@pytest.mark.parametrize("reply", [many_lines, long_line])
def test_a_flood_of_headers_is_no_answer(serve, reply):
    (answer,) = Endpoint(serve(reply).url, "m", retries=0).answer(CHAT)
    assert isinstance(answer, EndpointError)
    assert "got more than" in str(answer)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"choices": [{"message": {"content": NaN}}]}',
        b'{"choices": ' + b"9" * 10_000 + b"}",
        b'{"choices": [{"message": {"content": 1e999}}]}',
        b'{"choices": [{"message": {"content": {"text": "x"}}}]}',
        b'{"choices": [{"message": {"content": [{"no": "type"}]}}]}',
        b'{"choices": [{"message": "good day"}]}',
        b'{"choices": {"0": 1}}',
        b'{"choices": [null]}',
        b"[]",
        b"null",
        b"",
        b"\x00\xff\xfe" * 50,
        b"\xef\xbb\xbf{}",
        gzip.compress(GOOD, mtime=0),
    ],
)
def test_what_is_no_completion_is_a_reason(serve, body):
    server = serve(lambda handler: handler.answer(200, body))
    (answer,) = Endpoint(server.url, "m", retries=0).answer(CHAT)
    assert isinstance(answer, EndpointError)
    assert "expected a chat completion; got " in str(answer)
    assert str(answer).isprintable()
    assert len(str(answer)) < 600


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        "many",
        {"prompt_tokens": "7"},
        {"prompt_tokens": -3},
        {"completion_tokens": 10**400},
        {"prompt_tokens": True},
    ],
)
def test_a_count_that_is_none_costs_no_answer(serve, usage):
    content = json.dumps({"choices": [{"message": SAID}], "usage": usage}).encode()
    endpoint = Endpoint(serve(lambda handler: handler.answer(200, content)).url, "m")
    assert endpoint.answer(CHAT) == ["good day"]
    assert (endpoint.usage.prompt_tokens, endpoint.usage.completion_tokens) == (0, 0)


def test_an_answer_that_breaks_off_is_not_its_row_s_fault(serve):
    server = serve(lambda handler: handler.answer(200, GOOD, Content_Length=str(len(GOOD) + 9)))
    (answer,) = Endpoint(server.url, "m", retries=1, pause=0.001).answer(CHAT)
    assert isinstance(answer, EndpointError)
    assert answer.may_pass
    assert len(server.seen) == 2


def test_a_refusal_cannot_steer_a_terminal(serve):
    server = serve(lambda handler: handler.answer(400, b"\x1b[2J\r\n\x07no\x9b \xe2\x80\xae!"))
    (answer,) = Endpoint(server.url, "m").answer(CHAT)
    assert str(answer).isprintable()
    assert "no" in str(answer)
