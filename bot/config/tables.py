"""The tables of `ptq.toml` about the installation, one model each, and the plain values for lower floors.

A field's docstring is its documentation; `ptq.example.toml` shows every one of them.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import fields
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from sqlalchemy import make_url

from bot.gateway.proxy import Upstream
from bot.gateway.requests import RequestRule
from bot.github.session import Proxy, check_authorities
from handlers.inbox.receiving import MAX_PENDING
from runner.agents import BACKENDS, AgentSpec, build_agent
from runner.model.inventory import MAX_GPUS
from runner.model.machines import Machine
from runner.transport.ssh import HOST, USER, check_ssh_config, parse_hop

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")

SQLITE = "sqlite+aiosqlite:///"
POSTGRESQL = re.compile(
    r"postgresql\+asyncpg://([^/?#@:\s]+(:[^/?#@\s]+)?@)?(\[[0-9A-Fa-f:]+\]|[^/?#@:\s]+)(:[0-9]+)?/[^/?#\s]+(\?ssl=[a-z-]+)?"
)

IN_THE_CLOUD = re.compile(r"api\.(github\.com|[a-z0-9-]+\.ghe\.com)")
"""API hosts of GitHub's cloud. GitHub Enterprise Server has its API under a path of the web host instead."""


def find_web_url(api_url: str) -> str:
    """The root of clone URLs, derived from the API's address (docs.github.com, "Getting started with the REST API")."""
    parts = urlsplit(api_url)
    host = parts.netloc.removeprefix("api.") if IN_THE_CLOUD.fullmatch(parts.netloc) else parts.netloc
    return f"{parts.scheme}://{host}"


def _check_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", url):
        raise ValueError("must be an http(s) URL without credentials and query")
    return url.rstrip("/")


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _check_database(url: str) -> str:
    if not re.fullmatch(rf"{re.escape(SQLITE)}.+", url) and not POSTGRESQL.fullmatch(url):
        raise ValueError(
            f"must be {SQLITE}FILE or postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE, optionally with ?ssl=require; "
            "percent-encode special characters in the password"
        )
    return url


def _check_secret(secret: SecretStr) -> SecretStr:
    _check_text(secret.get_secret_value())
    return secret


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _read_text(path: Path, if_binary: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(if_binary) from None


def _check_key_file(path: Path) -> Path:
    parse_private_key(_read_text(path, "is not PEM"))
    return path


def _check_key(key: SecretStr) -> SecretStr:
    parse_private_key(key.get_secret_value())
    return key


def _check_file(path: Path) -> Path:
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise ValueError(f"does not exist: {path}") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    return path


def _check_ssh_config(path: Path) -> Path:
    check_ssh_config(path)
    return path


def _check_hop(hop: str) -> str:
    parse_hop(hop)
    return hop


def _check_kind(kind: str) -> str:
    if kind not in BACKENDS:
        raise ValueError(f"must be one of: {', '.join(BACKENDS)}")
    return kind


def _check_absolute(path: str) -> str:
    if not re.fullmatch(r"/[^\0\n]+", path):
        raise ValueError("must be an absolute path on the machine")
    return path


def _check_secret_file(path: Path) -> Path:
    _check_text(_read_text(path, "is empty"))
    return path


def _check_proxy_url(url: str) -> str:
    if not re.fullmatch(r"http://(\[[0-9A-Fa-f:]+\]|[^\s/?#@:]+):[0-9]{1,5}/?", url):
        raise ValueError("must be like http://proxy.example.org:3128; credentials have separate keys")
    return url


def _check_credentials(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[^:\s][^:\n]*:[^\n]*", secret.get_secret_value()):
        raise ValueError("must be like user:password, in one line")
    return secret


def _check_credentials_file(path: Path) -> Path:
    _check_credentials(SecretStr(path.read_text().strip()))
    return path


KEYS = {
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"),
    *("CLAUDE_CODE_OAUTH_TOKEN", "CODEX_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
}
"""Variables with which an agent would bypass the gateway."""

Text = Annotated[str, AfterValidator(_check_text)]
Url = Annotated[str, AfterValidator(_check_url)]
Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
SecretFile = Annotated[Path, AfterValidator(_check_secret_file)]
Command = Annotated[tuple[Text, ...], Field(min_length=1)]


class Table(BaseModel):
    """The base of all tables: no unknown keys, and no values in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def make(self, kind: type[Value], **others: Any) -> Value:
        """A plain value of a lower floor. Its fields get the `others`, and the values of keys with the same names."""
        names = {field.name for field in fields(kind)} & type(self).model_fields.keys() - others.keys()
        return kind(**{name: getattr(self, name) for name in names}, **others)


def read_secret(file: Path | None, value: SecretStr | None) -> str:
    """A secret that is in a file or directly in the configuration. Empty if it is in neither."""
    return file.read_text().strip() if file else value.get_secret_value() if value else ""


class GitHubTable(Table):
    """`[github]`: the GitHub App, and the address of GitHub."""

    api_url: Url = "https://api.github.com"
    ca_file: Annotated[Path, AfterValidator(check_authorities)] | None = None
    app_id: Annotated[Text, BeforeValidator(_as_text)]
    private_key_file: Annotated[Path, AfterValidator(_check_key_file)] | None = None
    private_key: Annotated[SecretStr, AfterValidator(_check_key)] | None = None
    webhook_secrets: Annotated[tuple[Secret, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_key(self) -> GitHubTable:
        if (self.private_key is None) == (self.private_key_file is None):
            raise ValueError("give exactly one of private_key_file and private_key")
        return self

    def read_private_key(self) -> str:
        """The App's key as PEM."""
        return parse_private_key(read_secret(self.private_key_file, self.private_key))


def parse_private_key(text: str) -> str:
    r"""A private key as PEM, from PEM, PEM with `\n` for line ends, or base64 of PEM. Raises `ValueError`."""
    pem = text.strip().replace("\\n", "\n")
    if not pem.startswith("-----BEGIN"):
        try:
            pem = base64.b64decode(pem, validate=False).decode().strip()
        except (binascii.Error, UnicodeDecodeError):
            pem = ""
    return _check_pem(pem)


@cache
def _check_pem(pem: str) -> str:
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError):
        raise ValueError("the private key is not an unencrypted RSA key in PEM format (or base64 of it)") from None
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("the private key is not an RSA key, as GitHub Apps have")
    return pem


class ProxyTable(Table):
    """`[proxy]`: the HTTP proxy through which the service reaches GitHub, models and `[notify]`."""

    url: Annotated[str, AfterValidator(_check_proxy_url)] | None = None
    credentials_file: Annotated[SecretFile, AfterValidator(_check_credentials_file)] | None = None
    credentials: Annotated[SecretStr, AfterValidator(_check_credentials)] | None = None
    no_proxy: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> ProxyTable:
        if self.credentials and self.credentials_file:
            raise ValueError("give at most one of credentials_file and credentials")
        if not self.url and (self.credentials or self.credentials_file or self.no_proxy):
            raise ValueError("credentials need a url")
        return self

    def read_credentials(self) -> str:
        """As `user:password`; empty if the proxy needs none."""
        return read_secret(self.credentials_file, self.credentials)

    def as_proxy(self, own_host: str) -> Proxy | None:
        """The plain value. Our own host is always asked directly."""
        return Proxy(self.url, self.read_credentials(), (*self.no_proxy, own_host)) if self.url else None


class ServerTable(Table):
    """`[server]`: addresses, the database and the data folder."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    metrics_host: Text = "127.0.0.1"
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    public_url: Url
    webhook_url: Url | None = None
    database_url: Annotated[str, Field(repr=False), AfterValidator(_check_database)] = f"{SQLITE}ptq.db"
    data_dir: Path = Path("var")
    max_pending_deliveries: Annotated[int, Field(ge=1)] = MAX_PENDING

    def delivery_url(self) -> str:
        """The address to which GitHub sends deliveries."""
        return self.webhook_url or f"{self.public_url}/webhook"

    def is_relayed(self) -> bool:
        """Whether a forwarder receives deliveries, so that its answer to GitHub does not mean that they arrived."""
        return self.webhook_url is not None

    def database_file(self) -> Path | None:
        """The file of the SQLite database; None for PostgreSQL."""
        return Path(self.database_url.removeprefix(SQLITE)) if self.database_url.startswith(SQLITE) else None

    def database_passwords(self) -> tuple[str, ...]:
        """The password in `database_url`, decoded, and as written there."""
        found = POSTGRESQL.fullmatch(self.database_url)
        password = make_url(self.database_url).password
        return (str(password), found[2][1:]) if password and found and found[2] else ()


class AgentGatewayTable(Table):
    """`[agents.NAME.gateway]`: how its models are reached, and what it can ask of them. The service keeps the key."""

    url: Url
    key: Secret | None = None
    headers: dict[Text, SecretStr] = {}
    api: Literal["anthropic-messages", "openai-responses", "openai-completions"] | None = None
    models: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    server_tools: frozenset[Text] = frozenset()
    max_output_tokens: Annotated[int, Field(ge=1)] = 32_000

    def as_upstream(self, own_models: tuple[str, ...]) -> Upstream:
        """The plain value, for an agent with these models of its own."""
        headers = {name.lower(): value.get_secret_value() for name, value in self.headers.items()}
        key = self.key.get_secret_value() if self.key else ""
        return Upstream(self.url, key, headers, self.make(RequestRule, own_models=own_models))


class AgentTable(Table):
    """`[agents.NAME]`: a program that works on issues."""

    kind: Annotated[str, AfterValidator(_check_kind)]
    command: Command | None = None
    args: tuple[Text, ...] = ()
    env: dict[str, SecretStr] = {}
    model: Text | None = None
    models: tuple[Text, ...] = ()
    thinking: Text | None = None
    gateway: AgentGatewayTable | None = None

    @model_validator(mode="after")
    def _complete(self) -> AgentTable:
        if self.kind == "command" and not self.command:
            raise ValueError("an agent of kind command also needs: command")
        if self.thinking and not build_agent(AgentSpec("", self.kind)).levels:
            raise ValueError(f"an agent of kind {self.kind} has no key: thinking")
        return self

    @model_validator(mode="after")
    def _led_to_gateway(self) -> AgentTable:
        if not self.gateway:
            return self
        if self.kind == "cursor":
            raise ValueError("gateway cannot be used, because Cursor's program only uses its own servers")
        if own := sorted(self.env.keys() & KEYS):
            raise ValueError(f"the gateway has the key: remove {', '.join(own)} from env")
        if self.kind == "pi" and "/" not in (self.model or ""):
            raise ValueError('pi with a gateway needs a model of the form "provider/model"')
        return self

    def as_spec(self, name: str) -> AgentSpec:
        """The plain value."""
        return self.make(
            AgentSpec,
            name=name,
            command=self.command or (),
            env={key: value.get_secret_value() for key, value in self.env.items()},
            behind_gateway=self.gateway is not None,
            gateway_api=(self.gateway and self.gateway.api) or "",
        )

    def own_models(self) -> tuple[str, ...]:
        """The configured model, and those that `--model` can request."""
        return (*([self.model] if self.model else ()), *self.models)


class MachineTable(Table):
    """`[[machines]]`: a host with slots, which the service reaches over SSH, or its own host."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")]
    kind: Literal["ssh", "local"] = "ssh"
    host: Annotated[str, Field(pattern=rf"^({HOST}|[0-9A-Fa-f:]+)$")] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: Annotated[str, Field(pattern=rf"^({USER})$")] | None = None
    client_key_file: Annotated[Path, AfterValidator(_check_file)] | None = None
    known_hosts_file: Annotated[Path, AfterValidator(_check_file)] | None = None
    jump_hosts: tuple[Annotated[str, AfterValidator(_check_hop)], ...] = ()
    ssh_config_file: Annotated[Path, AfterValidator(_check_file), AfterValidator(_check_ssh_config)] | None = None
    slots: Annotated[int, Field(ge=1, le=1000)] = 1
    labels: frozenset[str] = frozenset()
    serves: Annotated[frozenset[Literal["public", "private"]], Field(min_length=1)] = frozenset({"public"})
    workspace: Annotated[str, AfterValidator(_check_absolute)]
    python: Text = "python3"
    sandbox: Literal["auto", "required"] = "auto"
    environment: Literal["auto", "overlay", "copy", "slot"] = "auto"
    gpus_per_slot: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = None
    min_free_gb: Annotated[float, Field(ge=0)] = 10.0
    writable: tuple[Annotated[str, AfterValidator(_check_absolute)], ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> MachineTable:
        user = () if self.ssh_config_file else ("user",)
        needed = ("host", *user, "client_key_file", "known_hosts_file") if self.kind == "ssh" else ()
        missing = [name for name in needed if not getattr(self, name)]
        if missing:
            raise ValueError(f"a machine behind SSH also needs: {', '.join(missing)}")
        workspace = PurePosixPath(self.workspace)
        folders = [*map(PurePosixPath, self.writable)]
        for folder in folders:
            if any(folder.is_relative_to(other) for other in folders if other is not folder):
                raise ValueError(f"writable: {folder} is in another of its folders")
            if workspace.is_relative_to(folder) or folder.is_relative_to(workspace):
                raise ValueError(f"writable: {folder} must neither contain the workspace nor be in it")
        return self

    def as_machine(self) -> Machine:
        """The plain value."""
        return self.make(Machine, host=self.host or "", user=self.user or "")
