"""Validates endpoint URLs and key variables: these settings are written to files, must hold no key, and
determine where images and keys are sent.

A recipe may be a stranger's, so a setting alone cannot send away a secret of this machine:

- `key_variable` must end in _KEY or _TOKEN and must not name a service other than a model provider
  (`OTHER_SERVICES`): names such as AWS_SECRET_ACCESS_KEY and HF_TOKEN are refused. The user can allow such a
  name by listing it in the environment variable REWARDEDIT_KEY_VARIABLES.
- OPENAI_API_KEY goes to OpenAI's own host, and to others only if `key_variable` names it.
- No key goes over plain http, except to this machine and to private networks (`is_private`).
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Any
from urllib.parse import urlsplit

ADDRESS = re.compile(r"https?://", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
OPENAI_HOST = "api.openai.com"
OPENAI_VARIABLE = "OPENAI_API_KEY"
LISTED = "REWARDEDIT_KEY_VARIABLES"  # further allowed names, separated by commas
# Words in names of secrets other than model keys: of clouds, hubs, code hosts, trackers, systems.
OTHER_SERVICES = frozenset(
    (
        *("AWS", "AZURE", "GCP", "GCLOUD", "GOOGLE", "ALIYUN", "OCI", "DIGITALOCEAN", "CLOUDFLARE", "HEROKU"),
        *("HF", "HUGGING", "HUGGINGFACE", "HUB", "KAGGLE", "WANDB", "COMET", "NEPTUNE", "MLFLOW", "CLEARML"),
        *("GITHUB", "GH", "GITLAB", "GL", "BITBUCKET", "CI", "ACTIONS", "JENKINS", "NPM", "NODE", "PYPI"),
        *("TWINE", "UV", "PIP", "CONDA", "ANACONDA", "DOCKER", "REGISTRY", "KUBE", "KUBERNETES", "VAULT"),
        *("CONSUL", "NOMAD", "TF", "TERRAFORM", "ANSIBLE", "SSH", "GPG", "PGP", "TLS", "SSL", "CERT", "JWT"),
        *("SECRET", "PRIVATE", "ACCESS", "SESSION", "SIGNING", "ENCRYPTION", "MASTER", "ROOT", "ADMIN"),
        *(
            "REFRESH",
            "AUTH",
            "OAUTH",
            "DEPLOY",
            "DATABASE",
            "DB",
            "PG",
            "POSTGRES",
            "MYSQL",
            "MONGO",
            "REDIS",
        ),
        *("SLACK", "DISCORD", "TELEGRAM", "TWILIO", "SENDGRID", "STRIPE", "PAYPAL", "SENTRY", "DATADOG"),
    )
)
PRIVATE_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
)
# Ends of host names that public name servers do not resolve (RFC 6761, 6762, 8375; ICANN 2024-07-29).
PRIVATE_ENDS = (".localhost", ".local", ".internal", ".home.arpa")


@dataclass(frozen=True)
class Destination:
    """A host that requests go to, and the key that is sent along."""

    host: str  # with the port, if the address has one
    key_variable: str | None  # the environment variable whose key may be sent there; None: no key may
    sends_key: bool  # True if that variable is set, so that its key is sent

    def __str__(self) -> str:
        key = f"the key in {self.key_variable}" if self.sends_key else "no key"
        return f"{self.host}, with {key}"


def destination(url: str, key_variable: str | None = None) -> Destination:
    """The host of an endpoint's address, and the key that is sent to it.

    Args:
        key_variable: the setting of that name; None: OPENAI_API_KEY for OpenAI's own host, and no key for
            others.

    Raises:
        ValueError: as for `require_endpoint`.
    """
    require_endpoint(url, key_variable)
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if key_variable is None and (host == OPENAI_HOST or host.endswith(f".{OPENAI_HOST}")):
        key_variable = OPENAI_VARIABLE
    sends_key = key_variable is not None and bool(os.environ.get(key_variable, "").strip())
    return Destination(parts.netloc.lower(), key_variable, sends_key)


def destinations(options: Any) -> list[Destination]:
    """All endpoints whose addresses occur in a scorer's options, or in any other settings.

    The `key_variable` next to an address applies to it, or the one in its own options, such as
    `parser_options` for `parser`.

    Raises:
        ValueError: as for `require_endpoint`.
    """
    return list(dict.fromkeys(starmap(destination, _endpoints(options, None))))


def refuse_secrets(options: Any) -> None:
    """Raises ValueError if options hold a key, or would send one where it must not go: applies
    `require_endpoint` to every address in them and `require_env_name` to every variable's name.
    """
    for url, name in _endpoints(options, None):
        require_endpoint(url, name)


def _endpoints(options: Any, name: str | None) -> list[tuple[str, str | None]]:
    """Addresses in options, each with the name of the key variable that applies to it."""
    if isinstance(options, str):
        return [(options, name)] if ADDRESS.match(options) else []
    if isinstance(options, list | tuple):
        return list(chain.from_iterable(_endpoints(value, name) for value in options))
    if not isinstance(options, Mapping):
        return []

    variable = options.get("key_variable")
    if variable is not None:
        require_env_name(variable)
        name = variable

    pairs = []
    for key, value in options.items():
        options_of_key = options.get(f"{key}_options")
        beside = options_of_key.get("key_variable") if isinstance(options_of_key, Mapping) else None
        pairs += _endpoints(value, name if beside is None else beside)
    return pairs


def require_endpoint(url: str, key_variable: str | None) -> None:
    """Checks `require_address` and `require_env_name`, and that no key goes over plain http beyond private
    networks.

    Raises:
        ValueError: if one of them fails; the message quotes neither the address nor the variable.
    """
    require_address(url)
    if key_variable is not None:
        require_env_name(key_variable)
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    has_key = key_variable is not None or host == OPENAI_HOST or host.endswith(f".{OPENAI_HOST}")
    if has_key and parts.scheme.lower() == "http" and not is_private(host):
        raise ValueError(
            f"endpoint {host}: expected https, as a key would be sent beyond this machine and private "
            "networks; got plain http; write https://, or leave out key_variable to send none"
        )


def require_address(url: str) -> None:
    """Raises ValueError, which does not quote the address, if it is not an HTTP one, has no host or an
    impossible port, or holds a user, a query or parameters, in which keys may be sent.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        plain = bool(ADDRESS.match(url)) and "@" not in parts.netloc and not re.search("[?;]", url)
        plain = plain and bool(parts.hostname) and port != 0
        plain = plain and not re.search(r"[^!-~]|\\", url.partition("#")[0])
    except ValueError:  # its message would quote the address
        plain = False
    if not plain:
        raise ValueError(
            "endpoint: expected an address such as http://localhost:8000/v1, without a user or a query; "
            "a key belongs in an environment variable"
        )


def require_env_name(name: str) -> None:
    """Raises ValueError if a text is not the name of an environment variable that holds a model's key.

    The message quotes it only if it is certainly a name: it may be the key itself.
    """
    is_name = isinstance(name, str) and VARIABLE.fullmatch(name)
    if is_name and name in re.split(r"[,\s]+", os.environ.get(LISTED, "")):
        return

    words = name.strip("_").split("_") if is_name else [""]
    if len(words) < 2 or words[-1] not in ("KEY", "TOKEN"):
        raise ValueError(
            "key_variable: expected the name of an environment variable in capitals, such as OPENAI_API_KEY, "
            "which ends in _KEY or _TOKEN; got something else, perhaps the key itself; another name can be "
            f"listed in the environment variable {LISTED}"
        )
    if OTHER_SERVICES.intersection(words):
        raise ValueError(
            f"key_variable: expected a variable that holds the key of a model, such as MISTRAL_API_KEY; got "
            f"{name}, which holds another service's secret; list it in the environment variable {LISTED} to "
            "send it all the same"
        )


def is_private(host: str) -> bool:
    """True for this machine and private networks: their IP addresses, names of one label, and names that end
    as in `PRIVATE_ENDS`. No name is resolved.
    """
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return _is_private_name(host.lower().rstrip("."))
    number = getattr(number, "ipv4_mapped", None) or number
    return any(number.version == network.version and number in network for network in PRIVATE_NETWORKS)


def _is_private_name(name: str) -> bool:
    labels = name.split(".")
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name) or labels[-1][0].isdigit():
        return False  # "127.1" and "2130706433" are IP addresses to some systems
    return len(labels) == 1 or f".{name}".endswith(PRIVATE_ENDS)
