"""Saved contexts: a hub's URL, the user's client id there and the files to trust, so that they are typed once.

They are one file in the user's configuration directory, which nobody else may read. It names files of keys and
certificates, and holds no secret itself.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.config import Address
from headrace.config.sources import CA_VARIABLE, CERT_KEY_VARIABLE, CERT_VARIABLE, CONTEXT_VARIABLE
from headrace.errors import ConfigError, UsageError, system_reason
from headrace.protocols import PORTS, SCHEMES, is_tls, with_tls

_MOST: Final = 1 << 20
_DOORS: Final = {**SCHEMES, "http": "http", "https": "http"}


@dataclass(frozen=True, slots=True)
class Context:
    """A hub as somebody uses it."""

    url: str
    client_id: str = ""
    key_file: str = ""
    """The file with the client's key."""
    ca: str = ""
    cert: str = ""
    cert_key: str = ""

    def url_of(self, door: str) -> str:
        """Return the URL of a door, by its scheme: the saved one, or that of the same hub's other door.

        >>> Context("tube+tls://hub.example:99").url_of("tube"), Context("tube+tls://hub.example:99").url_of("http")
        ('tube+tls://hub.example:99', 'https://hub.example:8470')
        """
        scheme, _, rest = self.url.partition("://")
        wanted = _DOORS.get(door, door)
        if _DOORS[scheme] == wanted:
            return self.url
        hosts = [Address.parse(each.strip(), PORTS[_DOORS[scheme]]).host for each in rest.split(",")]
        if wanted == "http":
            hosts = hosts[:1]
        where = ",".join(str(Address(host, PORTS[wanted])) for host in hosts)
        return f"{with_tls(door) if is_tls(scheme) else door}://{where}"


@dataclass(slots=True)
class Contexts:
    """All of them, and the one in use."""

    current: str = ""
    contexts: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """Return the context of this name."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none is saved"
            raise UsageError(f"no context is named {name!r} ({known}); `headrace context add` saves one")
        return self.contexts[name]


def file_of_contexts() -> Path:
    """Return the path of the file that has them."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "headrace" / "contexts.json"


def load_contexts() -> Contexts:
    """Load them; there may be none."""
    path = file_of_contexts()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}") from None
    try:
        found = json.loads(content[:_MOST])
        saved = {str(name): Context(**each) for name, each in found["contexts"].items()}
        if not all(isinstance(value, str) for each in saved.values() for value in asdict(each).values()):
            raise TypeError("a value is not text")
        return Contexts(str(found["current"]), saved)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error}): remove it, and save the contexts again") from None


def save_contexts(contexts: Contexts) -> None:
    """Save them, for this user's eyes only."""
    path = file_of_contexts()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file made so has mode 600 from the beginning.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="contexts.", delete=False) as making:
        making.write(json.dumps(asdict(contexts), indent=2).encode() + b"\n")
    Path(making.name).replace(path)


def make_context(url: str, **files: str | None) -> Context:
    """Make a context, after checking that its URL names a hub and that its files exist."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in _DOORS or not rest.strip("/"):
        expected = "scheme://host:port, as in tube+tls://hub.example"
        raise UsageError(f"{url!r} names no hub: expected {expected}")
    for each in rest.removesuffix("/").split(","):
        try:
            Address.parse(each.strip(), 1)
        except ValueError:
            raise UsageError(f"{each!r} is not a host: expected host or host:port") from None
    found: dict[str, Any] = {}
    for name, value in files.items():
        if not value:
            continue
        if name != "client_id":
            path = Path(value).expanduser().absolute()
            if not path.is_file():
                raise UsageError(f"--{name.replace('_', '-')} {value}: there is no such file")
            value = str(path)
        found[name] = value
    if ("client_id" in found) != ("key_file" in found):
        raise UsageError("--client-id and --key-file belong together")
    if not is_tls(scheme.lower()) and (tls := found.keys() & {"ca", "cert", "cert_key"}):
        name = f"--{min(tls).replace('_', '-')}"
        raise UsageError(f"{name} is for TLS, which {scheme}:// has not: save {with_tls(scheme)}://")
    return Context(f"{scheme.lower()}://{rest.removesuffix('/')}", **found)


def current_context() -> Context | None:
    """Return the context in use: the one that ``--context`` or the environment names, else the saved choice."""
    named = os.environ.get(CONTEXT_VARIABLE)
    if named is not None and not named:
        return None  # Explicitly none.
    contexts = load_contexts()
    name = named or contexts.current
    if not name:
        return None
    context = contexts.find(name)
    _trust(context)
    return context


def key_of(context: Context) -> str | None:
    """Read the key of a context's client."""
    from headrace.config.key_files import read_key

    if not context.key_file:
        return None
    try:
        return read_key(Path(context.key_file), "key_file", "the context").reveal()
    except ConfigError as error:
        raise UsageError(str(error)) from None


def use_for_tls(context: str | None, *, ca: str | None, cert: str | None, cert_key: str | None) -> None:
    """Let every client of this process use these files for TLS; else those that the environment names.

    What neither names comes from the context in use, once a command asks for that.
    """
    given = {CONTEXT_VARIABLE: context, CA_VARIABLE: ca, CERT_VARIABLE: cert, CERT_KEY_VARIABLE: cert_key}
    os.environ.update({variable: value for variable, value in given.items() if value is not None})


def _trust(context: Context) -> None:
    for variable, file in (
        (CA_VARIABLE, context.ca),
        (CERT_VARIABLE, context.cert),
        (CERT_KEY_VARIABLE, context.cert_key),
    ):
        if file:
            os.environ.setdefault(variable, file)
