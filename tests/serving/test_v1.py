import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from rewardedit.batch import EditSample, collate
from rewardedit.data.reading import PreparedRows
from rewardedit.images import load_image
from rewardedit.scorers import load_scorer
from rewardedit.serving.app import make_app
from rewardedit.serving.scorer_set import LoadedScorers, ScorerSet
from rewardedit.serving.settings import ServeConfig
from tests.serving.helpers import (
    L1,
    SLOW,
    STRICT,
    base64_of,
    client_of,
    direct,
    edit,
    encoded,
    item,
    picture,
)

SPECS = {"l1": "l1", "outside": {"l1": {"region": "outside"}}, "strict": STRICT}


@pytest.fixture(scope="module")
def client():
    with client_of(SPECS, max_items=64, max_pixels=10_000, max_body_mb=1) as client:
        yield client


def scores_of(answer, name: str) -> list[float]:
    return [result["scores"][name]["score"] for result in answer.json()["results"]]


def test_scores_of_many_sizes_equal_direct_calls(client):
    edits = [edit(i, width=20 + 4 * (i % 3)) for i in range(12)]
    edits += [edit(i, source_caption="a cat", target_caption="a dog") for i in range(12, 16)]
    with ThreadPoolExecutor(4) as pool:  # requests that share batches
        answers = list(pool.map(lambda e: client.post("/v1/score", json=item(e)), edits))
    together = client.post("/v1/score", json={"items": [item(e) for e in edits]})
    for i, (fields, answer) in enumerate(zip(edits, answers, strict=True)):
        expected = direct("l1", fields)
        assert scores_of(answer, "l1") == [pytest.approx(expected, abs=1e-6)]
        assert scores_of(together, "l1")[i] == pytest.approx(expected, abs=1e-6)
        assert together.json()["results"][i]["id"] == str(i)


def test_a_mask_reaches_the_scorer(client):
    mask = picture(9, channels=1).point(lambda value: 255 * (value > 128))
    fields = edit(3, mask=mask)
    answer = client.post("/v1/score", json={**item(fields), "scorers": ["outside"]})
    assert scores_of(answer, "outside") == [pytest.approx(direct(SPECS["outside"], fields), abs=1e-6)]
    assert answer.json()["results"][0]["scores"].keys() == {"outside"}


def test_a_form_is_scored_as_json_is(client):
    edits = [edit(1), edit(2)]
    files = [(name, encoded(e[name])) for e in edits for name in ("source", "edited")]
    data = {"instruction": ["make it 1", "make it 2"], "scorers": "l1"}
    answer = client.post("/v1/score", files=files, data=data)
    expected = client.post("/v1/score", json={"items": [item(e) for e in edits], "scorers": ["l1"]})
    assert scores_of(answer, "l1") == scores_of(expected, "l1")

    answer = client.post("/v1/score", files=files, data={"instruction": "one"})
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "instruction: expected 2, one for each source; got 1",
    )
    answer = client.post("/v1/score", files={"mask": b""}, data={"instruction": "one"})
    assert (answer.status_code, answer.json()["error"][:23]) == (422, "source: field required;")
    answer = client.post("/v1/score", files=files[:1], data={"edited": "/etc/passwd", "instruction": "x"})
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "edited: expected a file; with curl: -F edited=@FILE",
    )


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_formats_are_decoded_as_files_are(client, kind, tmp_path):
    fields = edit(5)
    sent = {**item(fields), "edited": base64_of(fields["edited"], kind)}
    (tmp_path / "edited").write_bytes(base64.b64decode(sent["edited"]))
    expected = direct("l1", {**fields, "edited": load_image(tmp_path / "edited")})
    assert scores_of(client.post("/v1/score", json=sent), "l1") == [pytest.approx(expected, abs=1e-6)]


def test_an_edit_of_another_size_is_resized(client):
    fields = edit(6, edited=picture(60, 48, 32))
    sample = PreparedRows([]).prepare(EditSample(**fields))
    expected = float(load_scorer("l1")(collate([sample])).score[0])
    assert scores_of(client.post("/v1/score", json=item(fields)), "l1") == [pytest.approx(expected, abs=1e-6)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"edited": "/etc/passwd"}, "edited: expected an image's bytes in base64"),
        ({"source": "https://host/a.png"}, "source: expected an image's bytes in base64"),
        ({"source": base64.b64encode(b"GIF89a").decode()}, "source: the bytes are not an image"),
        ({"edited": base64_of(picture(1), "BMP")}, "edited: expected PNG, JPEG or WebP; got BMP"),
        ({"edited": base64_of(picture(1, 200, 100))}, "edited: expected at most 10000 pixels"),
        ({"mask": "!"}, "mask: expected an image's bytes in base64"),
        ({"instruction": " "}, "expected an instruction; got nothing"),
        ({"instruction": "x" * 10_001}, "instruction: expected at most 10000 characters"),
        ({"instruction": "\ud800"}, "instruction"),
    ],
)
def test_one_bad_item_is_invalid_and_others_are_scored(client, change, reason):
    good = edit(7)
    bad = item(edit(8)) | change
    body = json.dumps({"items": [item(good), bad, item(good)], "scorers": ["l1"]})
    results = client.post("/v1/score", content=body).json()["results"]
    expected = pytest.approx(direct("l1", good), abs=1e-6)
    assert [r["scores"]["l1"]["score"] for r in results] == [expected, None, expected]
    assert [r["scores"]["l1"]["valid"] for r in results] == [True, False, True]
    assert reason in results[1]["scores"]["l1"]["reason"]


@pytest.mark.parametrize("word", ["refuse", "fail", "void"])
def test_an_edit_does_not_spoil_its_batch(client, word):
    items = [item(edit(i)) for i in range(4)]
    items[2]["instruction"] = word
    answer = client.post("/v1/score", json={"items": items, "scorers": ["strict"]})
    expected = [direct(STRICT, edit(i)) for i in range(4)]
    expected[2] = None
    assert scores_of(answer, "strict") == [e if e is None else pytest.approx(e, abs=1e-6) for e in expected]
    reason = answer.json()["results"][2]["scores"]["strict"]["reason"]
    words = {"refuse": "this instruction is refused", "fail": "KeyError", "void": "not finite"}
    assert words[word] in reason


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"{", 400, "body: expected JSON"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"items": NaN}', 400, "finite"),
        (b"\xff\xfe\x00", 400, "body: expected JSON"),
        (b"[]", 422, "body: expected an object"),
        (b"{}", 422, "source: field required; edited: field required; instruction: field required"),
        (b'{"items": []}', 422, "items: list should have at least 1 item"),
        (b'{"items": [{"source": "", "edited": ""}]}', 422, "items.0.instruction: field required"),
        (b'{"items": [{"source": 3, "edited": "", "instruction": ""}]}', 422, "items.0.source: input"),
        (b'{"source": "", "edited": "", "instruction": "", "url": ""}', 422, "url: extra inputs"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(client, body, status, error):
    answer = client.post("/v1/score", content=body)
    assert answer.status_code == status
    assert error in answer.json()["error"]


def test_unreadable_and_large_images_have_a_status(client):
    bad = item(edit(1)) | {"source": "AAAA"}
    answer = client.post("/v1/score", json={"items": [bad, bad]})
    assert answer.status_code == 400
    assert "no item can be read; the first: source: the bytes are not an image" in answer.json()["error"]
    large = item(edit(1)) | {"source": base64_of(picture(1, 200, 100))}
    assert client.post("/v1/score", json=large).status_code == 413
    answer = client.post("/v1/score", json={"items": [bad] * 65})
    assert (answer.status_code, answer.json()["error"]) == (
        413,
        "items: expected at most 64; got 65; send fewer",
    )
    answer = client.post("/v1/score", json={**bad, "scorers": ["l2"]})
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "scorers: expected some of l1, outside, strict; got l2",
    )


def test_scorers_say_what_their_scores_are(client):
    listed = {info["name"]: info for info in client.get("/v1/scorers").json()["scorers"]}
    assert listed.keys() == SPECS.keys()
    l1 = listed["l1"]
    assert (l1["range"], l1["direction"], l1["required_fields"], l1["device"]) == (
        [0, 1],
        "higher",
        [],
        "cpu",
    )
    assert len({info["fingerprint"] for info in listed.values()}) == 3
    result = client.post("/v1/score", json=item(edit(1))).json()["results"][0]
    for name, info in listed.items():
        assert result["scores"][name]["fingerprint"] == info["fingerprint"]


def test_a_loading_server_answers_503():
    may_load = threading.Event()

    class Waiting(ScorerSet):
        def load(self, batch_size: int) -> LoadedScorers:
            may_load.wait()
            return super().load(batch_size)

    with TestClient(make_app(Waiting(L1), ServeConfig()), base_url="http://localhost") as client:
        for answer in (client.get("/health"), client.post("/v1/score", json=item(edit(1)))):
            assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert client.get("/health").json() == {"status": "loading"}
        may_load.set()
        while client.get("/health").status_code != 200:
            pass
        assert client.post("/v1/score", json=item(edit(1))).status_code == 200


def test_a_full_queue_answers_429():
    with client_of({"slow": SLOW}, max_queue=2, max_items=2, batch_size=1) as client:
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(client.post, "/v1/score", json=item(edit(i))) for i in range(6)]
            answers = [call.result() for call in calls]
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses[:3] == [200] * 3
        assert statuses[-1] == 429
        full = next(answer for answer in answers if answer.status_code == 429)
        assert full.headers["retry-after"] == "1"
        assert "the queue is full, 2 edits" in full.json()["error"]


def test_decoded_images_are_bounded():
    with client_of({"slow": SLOW}, max_decoded_mb=1, max_wait_ms=0) as client:
        large = item(edit(1, width=400, height=400))
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(client.post, "/v1/score", json=large) for _ in range(4)]
            statuses = sorted(call.result().status_code for call in calls)
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert client.post("/v1/score", json={"items": [large, large]}).status_code == 413
        assert client.post("/v1/score", json=large).status_code == 200  # nothing is held any more


def test_metrics_count_what_was_scored(client):
    before = client.get("/metrics").text
    client.post("/v1/score", json={**item(edit(1)), "scorers": ["l1"]})
    after = client.get("/metrics").text

    def count(text: str, name: str) -> float:
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    for name in ('rewardedit_scores_total{outcome="valid",scorer="l1"}', "rewardedit_batch_edits_count"):
        assert count(after, name) == count(before, name) + 1
    assert 'rewardedit_requests_total{path="/v1/score",status="200"}' in after


def test_the_openapi_page_has_every_body(client):
    page = client.get("/openapi.json").json()
    schemas = page["components"]["schemas"]
    for path in ("/v1/score", "/score", "/compute"):
        body = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for reference in body.get("anyOf", [body]):
            assert reference["$ref"].rpartition("/")[2] in schemas
    assert client.get("/docs").status_code == 200
