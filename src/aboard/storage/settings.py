"""The supported clouds, and how the endpoint and credentials of each are found.

Searches take the environment and the home directory and return values; they make no requests. Each
follows the cloud's own tools, and errors use the names of their settings. A root may have variables
of its own, its *profile*. `object` connects to the clouds.
"""

import configparser
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from aboard.storage.base import (
    SCHEMES,
    BadUri,
    NoCredentials,
    RemoteUri,
    Unreachable,
    is_remote,
)

Environment = Mapping[str, str]
Config = dict[str, str | bool]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_METADATA_HOST = "http://169.254.169.254"
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AWS_JOB_IDENTITY = {
    "AWS_WEB_IDENTITY_TOKEN_FILE": "AWS_ROLE_ARN AWS_ROLE_SESSION_NAME AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
}
"""Variables that set the identity of a workload, in the library's order, and related ones."""
_GOOGLE_TOKENS = _names("CLOUDSDK_AUTH_ACCESS_TOKEN GOOGLE_OAUTH_ACCESS_TOKEN GOOGLE_BEARER_TOKEN")
_GOOGLE_ACCOUNT_FILE = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
_GOOGLE_ACCOUNT_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"
_AZURE_SUFFIX = "core.windows.net"
_AZURE_ACCOUNT = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
_AZURE_KEYS = _names(
    "AZURE_STORAGE_KEY AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_ACCESS_KEY AZURE_STORAGE_MASTER_KEY"
)
_AZURE_SIGNATURES = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_AZURE_OF_ONE_ACCOUNT = ("AZURE_STORAGE_CONNECTION_STRING", *_AZURE_KEYS, *_AZURE_SIGNATURES)
_AZURE_JOB_IDENTITY = _names(
    "AZURE_CLIENT_SECRET AZURE_STORAGE_CLIENT_SECRET AZURE_FEDERATED_TOKEN_FILE AZURE_MSI_ENDPOINT"
    " AZURE_IDENTITY_ENDPOINT AZURE_USE_AZURE_CLI"
)
_AZURE_JOB_OPTIONS = {
    "client_id": _names("AZURE_CLIENT_ID AZURE_STORAGE_CLIENT_ID"),
    "client_secret": _names("AZURE_CLIENT_SECRET AZURE_STORAGE_CLIENT_SECRET"),
    "tenant_id": _names(
        "AZURE_TENANT_ID AZURE_STORAGE_TENANT_ID AZURE_AUTHORITY_ID AZURE_STORAGE_AUTHORITY_ID"
    ),
    "authority_host": _names("AZURE_AUTHORITY_HOST AZURE_STORAGE_AUTHORITY_HOST"),
    "federated_token_file": _names("AZURE_FEDERATED_TOKEN_FILE"),
    "msi_endpoint": _names("AZURE_MSI_ENDPOINT AZURE_IDENTITY_ENDPOINT"),
    "object_id": _names("AZURE_OBJECT_ID"),
    "msi_resource_id": _names("AZURE_MSI_RESOURCE_ID"),
    "use_azure_cli": _names("AZURE_USE_AZURE_CLI"),
}
_OSS_KEYS = (
    _names("OSS_ACCESS_KEY_ID OSS_ACCESS_KEY_SECRET OSS_SESSION_TOKEN"),
    _names(
        "ALIBABA_CLOUD_ACCESS_KEY_ID ALIBABA_CLOUD_ACCESS_KEY_SECRET ALIBABA_CLOUD_SECURITY_TOKEN"
    ),
)
_AZURE_JOB_VARIABLES = tuple(chain.from_iterable(_AZURE_JOB_OPTIONS.values()))
_AZURE_ABOVE_JOBS: tuple[str, ...] = ("AZURE_STORAGE_TOKEN", *_AZURE_KEYS)


class Keys(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None = None


class Probe(NamedTuple):
    """A request that the metadata service of a machine, if any, answers at once."""

    method: str
    url: str


@dataclass(frozen=True, slots=True)
class Identity:
    """The credentials to use; `config` has the options of the object store library.

    `keys` is called again when keys expire, since files with short-lived keys are rewritten;
    `secret` overrides other credentials. `needs_package` names the package for credentials that the
    library cannot use, and `login` its arguments. `machine_service` is set if only the identity of
    the machine is left to try. `outranked_by` are variables of the environment that the library
    would prefer.
    """

    config: Config = field(default_factory=dict)
    keys: Callable[[], Keys] | None = None
    secret: Mapping[str, str] | None = None
    needs_package: str = ""
    login: Mapping[str, str] = field(default_factory=dict)
    machine_service: Probe | None = None
    outranked_by: tuple[str, ...] = ()


ANONYMOUS = Identity({"skip_signature": True})


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the object store library; `endpoint` is empty for the cloud's default."""

    identity: Identity
    endpoint: str
    config: Config
    certificates: str = ""  # a file with additional authorities to trust


def s3(uri: RemoteUri, env: Environment, home: Path) -> Settings:
    """Find what AWS tools would: variables first, then the profile in the shared files."""
    profile = _aws_profile(uri, env, home)
    endpoint = _first(env, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = _checked_endpoint(uri, endpoint or profile.get("endpoint_url", ""))
    region = _first(env, "AWS_REGION", "AWS_DEFAULT_REGION") or profile.get("region", "")
    given = {"endpoint": endpoint, "region": region}
    config: Config = {name: value for name, value in given.items() if value}
    config["disable_bulk_delete"] = True
    certificates = _first(env, "AWS_CA_BUNDLE") or profile.get("ca_bundle", "")
    return Settings(_s3_identity(uri, env, home, profile), endpoint, config, certificates)


def _s3_identity(
    uri: RemoteUri, env: Environment, home: Path, profile: Mapping[str, str]
) -> Identity:
    if _is_set(env, "AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE"):
        return ANONYMOUS
    if _first(env, *_AWS_KEYS[:2]):
        return _fixed(_keys(uri, env, *_AWS_KEYS))
    above = [*_AWS_KEYS[:2]]
    for name, others in _AWS_JOB_IDENTITY.items():
        if env.get(name):
            names = _names(f"{name} {others}")
            config: Config = {one.lower(): env[one] for one in names if env.get(one)}
            return Identity(config, outranked_by=tuple(above))
        above.append(name)
    if "aws_access_key_id" in profile:
        names = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
        return Identity(keys=lambda: _keys(uri, _aws_profile(uri, env, home), *names))
    if any(name.startswith(("sso_", "role_arn", "credential_process")) for name in profile):
        return Identity(needs_package="boto3", login=_aws_files(env, home))
    if _is_set(env, "AWS_EC2_METADATA_DISABLED"):
        raise no_credentials(uri)
    service = _first(env, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT")
    service = (service or _METADATA_HOST).rstrip("/")
    probe = Probe("PUT", f"{service}/latest/api/token")
    config = {"metadata_endpoint": service}
    return Identity(config, machine_service=probe, outranked_by=tuple(above))


def _aws_profile(uri: RemoteUri, env: Environment, home: Path) -> dict[str, str]:
    """Read one profile: settings from the config file, overlaid by the credentials file."""
    name, config, shared = _aws_files(env, home).values()
    sections = _ini(uri, Path(config))
    profile = sections.get(f"profile {name}", sections.get(name, {}) if name == "default" else {})
    profile = profile | _ini(uri, Path(shared)).get(name, {})
    if not profile and _first(env, "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        problem = f"the AWS profile '{name}' is neither in {shared} nor in {config}"
        raise no_credentials(uri, problem)
    return profile


def _aws_files(env: Environment, home: Path) -> dict[str, str]:
    """Return the profile and the files that may hold it, by botocore's names for them."""
    config = Path(env.get("AWS_CONFIG_FILE") or home / ".aws/config")
    shared = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials")
    return {
        "profile": _first(env, "AWS_PROFILE", "AWS_DEFAULT_PROFILE") or "default",
        "config_file": str(config.expanduser()),
        "credentials_file": str(shared.expanduser()),
    }


def gcs(uri: RemoteUri, env: Environment, home: Path) -> Settings:
    """Find what Google's tools would: application default credentials, or an emulator."""
    emulator = _first(env, "STORAGE_EMULATOR_HOST", "GOOGLE_STORAGE_EMULATOR_HOST")
    endpoint = _first(env, "GOOGLE_BASE_URL") or _with_scheme(emulator, "http")
    endpoint = _checked_endpoint(uri, endpoint)
    # An emulator accepts any token; without one the library looks for the machine's identity.
    default = Identity({"bearer_token": "emulator"}) if emulator else None
    identity = _gcs_identity(uri, env, home, default)
    return Settings(identity, endpoint, {"base_url": endpoint} if endpoint else {})


def _gcs_identity(  # noqa: PLR0911 (one after the other, in the order of Google's tools)
    uri: RemoteUri, env: Environment, home: Path, default: Identity | None
) -> Identity:
    if _is_set(env, "GOOGLE_SKIP_SIGNATURE", "CLOUDSDK_AUTH_DISABLE_CREDENTIALS"):
        return ANONYMOUS
    if token := _first(env, *_GOOGLE_TOKENS):
        return Identity({"bearer_token": token})
    above: tuple[str, ...] = ("GOOGLE_BEARER_TOKEN", *_GOOGLE_ACCOUNT_FILE, _GOOGLE_ACCOUNT_KEY)
    if file := _first(env, *_GOOGLE_ACCOUNT_FILE):
        return Identity({"service_account": file}, outranked_by=(above[0], above[-1]))
    if key := _first(env, _GOOGLE_ACCOUNT_KEY):
        return Identity({"service_account_key": key}, outranked_by=above[:-1])
    given = _first(env, "GOOGLE_APPLICATION_CREDENTIALS")
    login = Path(env.get("CLOUDSDK_CONFIG") or home / ".config/gcloud").expanduser()
    path = Path(given) if given else login / "application_default_credentials.json"
    if given or path.exists():
        if _google_account_type(uri, path) in {"service_account", "authorized_user"}:
            return Identity({"application_credentials": str(path)}, outranked_by=above)
        return Identity(needs_package="google-auth", login={"file": str(path)})
    probe = Probe("GET", f"{_METADATA_HOST}/computeMetadata/v1/")
    above += ("GOOGLE_APPLICATION_CREDENTIALS",)
    return default or Identity(machine_service=probe, outranked_by=above)


def _google_account_type(uri: RemoteUri, path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["type"])
    except (OSError, ValueError, KeyError, TypeError):
        problem = f"the credentials file {path} is missing or not one of Google's"
        raise no_credentials(uri, problem) from None


def azure(uri: RemoteUri, env: Environment, home: Path) -> Settings:
    """Find what Azure's tools would: a connection string, an account with a key, or a login."""
    connection = _connection_string(env.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    development = connection.get("usedevelopmentstorage", "").lower() == "true"
    if development or _is_set(env, "AZURE_STORAGE_USE_EMULATOR"):
        return Settings(Identity(), "http://127.0.0.1:10000", {"use_emulator": True})
    host = uri.bucket.partition("@")[2]
    account = host.partition(".")[0] or connection.get("accountname", "")
    account = account or _first(env, *_AZURE_ACCOUNT)
    if not account:
        raise no_credentials(uri, "no storage account is set")
    endpoint = _checked_endpoint(uri, _azure_endpoint(host, connection, env))
    config: Config = {"account_name": account}
    if endpoint:
        config["endpoint"] = endpoint
    return Settings(_azure_identity(uri, env, home, connection), endpoint, config)


def _azure_identity(  # noqa: PLR0911 (one after the other, in the order of Azure's tools)
    uri: RemoteUri, env: Environment, home: Path, connection: Mapping[str, str]
) -> Identity:
    if _is_set(env, "AZURE_SKIP_SIGNATURE"):
        return ANONYMOUS
    if key := connection.get("accountkey") or _first(env, *_AZURE_KEYS):
        if not re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", key):
            raise no_credentials(uri, "the account key is not base64")
        return Identity(secret={"access_key": key})
    signature = connection.get("sharedaccesssignature") or _first(env, *_AZURE_SIGNATURES)
    if signature:
        return Identity(secret={"sas_token": signature.removeprefix("?")})
    if token := _first(env, "AZURE_STORAGE_TOKEN"):
        return Identity(secret={"token": token})
    if _first(env, *_AZURE_JOB_IDENTITY):
        return _azure_job_identity(env)
    above = (*_AZURE_ABOVE_JOBS, *_AZURE_SIGNATURES, *_AZURE_JOB_VARIABLES)
    login = Path(env.get("AZURE_CONFIG_DIR") or home / ".azure") / "azureProfile.json"
    if login.exists() and shutil.which("az", path=env.get("PATH")):
        return Identity({"use_azure_cli": True}, outranked_by=above)
    probe = Probe("GET", f"{_METADATA_HOST}/metadata/instance")
    return Identity(machine_service=probe, outranked_by=above)


def _azure_job_identity(env: Environment) -> Identity:
    found = {option: _first(env, *names) for option, names in _AZURE_JOB_OPTIONS.items()}
    config: Config = {option: value for option, value in found.items() if value}
    above = _AZURE_ABOVE_JOBS
    if "federated_token_file" not in config:
        above += _AZURE_JOB_OPTIONS["federated_token_file"]
        if "client_secret" not in config:
            above += (*_AZURE_SIGNATURES, *_AZURE_JOB_VARIABLES)
    return Identity(config, outranked_by=above)


def _connection_string(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(";") if "=" in pair)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _azure_endpoint(host: str, connection: Mapping[str, str], env: Environment) -> str:
    if endpoint := connection.get("blobendpoint"):
        return endpoint
    if suffix := connection.get("endpointsuffix"):
        protocol = connection.get("defaultendpointsprotocol", "https")
        return f"{protocol}://{connection.get('accountname', '')}.blob.{suffix}"
    if endpoint := _first(env, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"):
        return endpoint
    # Some countries have separate clouds: `account.dfs.core.chinacloudapi.cn`.
    named = re.fullmatch(r"(.+?)\.(?:dfs|blob)\.(.+)", host)
    if named is None or named[2] == _AZURE_SUFFIX:
        return ""
    return f"https://{named[1]}.blob.{named[2]}"


def oss(uri: RemoteUri, env: Environment, home: Path) -> Settings:
    """Find what Alibaba's tools would; requests use S3, with the bucket in the host name."""
    sections = _ini(uri, Path(env.get("OSS_CONFIG_FILE") or home / ".ossutilconfig").expanduser())
    profile = sections.get("Credentials") or sections.get("default") or {}
    region = _first(env, "OSS_REGION", "ALIBABA_CLOUD_REGION_ID") or profile.get("region", "")
    region = region.removeprefix("oss-")
    endpoint = _first(env, "OSS_ENDPOINT") or profile.get("endpoint", "")
    if not endpoint and not region:
        hint = "Set OSS_ENDPOINT, or OSS_REGION such as cn-hangzhou."
        raise Unreachable(str(uri), "the OSS endpoint is unknown", hint)
    endpoint = _with_scheme(endpoint or f"oss-{region}.aliyuncs.com", "https")
    endpoint = _oss_endpoint(_checked_endpoint(uri, endpoint), uri.bucket, env)
    in_name = re.search(r"oss-([a-z0-9-]+?)(-internal)?\.aliyuncs\.com", endpoint)
    config: Config = {
        # The library also reads AWS variables, which must not apply here.
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "region": region or (in_name[1] if in_name else "oss"),
        "virtual_hosted_style_request": True,
        "disable_bulk_delete": True,
        "skip_signature": False,
    }
    return Settings(_oss_identity(uri, env, profile), endpoint, config)


def _oss_identity(uri: RemoteUri, env: Environment, profile: Mapping[str, str]) -> Identity:
    if _is_set(env, "OSS_SKIP_SIGNATURE"):
        return ANONYMOUS
    for names in _OSS_KEYS:
        if _first(env, *names[:2]):
            return _fixed(_keys(uri, env, *names))
    if "accesskeyid" in profile:
        return _fixed(_keys(uri, profile, "accesskeyid", "accesskeysecret", "ststoken"))
    raise no_credentials(uri)


def _oss_endpoint(endpoint: str, bucket: str, env: Environment) -> str:
    """Put the bucket into the host name, and prefer the host that is documented to speak S3."""
    scheme, _, host = endpoint.rstrip("/").partition("://")
    if host.startswith(f"{bucket}.") or _is_set(env, "OSS_CNAME"):
        return f"{scheme}://{host}"
    if re.fullmatch(r"oss-[a-z0-9-]+\.aliyuncs\.com", host):
        host = f"s3.{host}"
    return f"{scheme}://{bucket}.{host}"


def _keys(uri: RemoteUri, source: Mapping[str, str], access: str, secret: str, token: str) -> Keys:
    for name, other in ((access, secret), (secret, access)):
        if not source.get(name):
            raise no_credentials(uri, f"{other} is set and {name} is not")
    return Keys(source[access], source[secret], source.get(token) or None)


def _fixed(keys: Keys) -> Identity:
    return Identity(keys=lambda: keys)


def _ini(uri: RemoteUri, path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, configparser.Error):
        raise no_credentials(uri, f"{path} cannot be read") from None
    return {section: dict(parser[section]) for section in parser.sections()}


def _first(env: Environment, *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def _is_set(env: Environment, *names: str) -> bool:
    return any(env.get(name, "").lower() in {"1", "true", "yes", "on"} for name in names)


def _with_scheme(endpoint: str, scheme: str) -> str:
    return endpoint if not endpoint or "://" in endpoint else f"{scheme}://{endpoint}"


def _checked_endpoint(uri: RemoteUri, endpoint: str) -> str:
    if endpoint and not re.fullmatch(r"https?://[A-Za-z0-9.\-_:\[\]]+(/[\w./~-]*)?", endpoint):
        hint = "An endpoint is https://host or http://host:port."
        raise BadUri(str(uri), f"'{endpoint}' is not an endpoint", hint)
    return endpoint.rstrip("/")


def no_credentials(uri: RemoteUri, problem: str = "no credentials were found") -> NoCredentials:
    return NoCredentials(str(uri), problem, CLOUDS[uri.cloud].hint)


class Cloud(NamedTuple):
    """The settings of a cloud; a root that sets one of `credentials` gets no other.

    Its tools keep logins in `files`, below the home directory, and in files that the variables in
    `named` point to.
    """

    find: Callable[[RemoteUri, Environment, Path], Settings]
    store: Literal["AzureStore", "GCSStore", "S3Store"]
    variables: tuple[str, ...]
    credentials: tuple[str, ...]
    files: tuple[str, ...]
    named: tuple[str, ...]
    endpoint: str
    hint: str


CLOUDS = {
    "s3": Cloud(
        find=s3,
        store="S3Store",
        variables=("AWS_",),
        credentials=(
            *_AWS_KEYS,
            *_names(" ".join(map(" ".join, _AWS_JOB_IDENTITY.items()))),
            *_names(
                "AWS_PROFILE AWS_DEFAULT_PROFILE AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE"
                " AWS_EC2_METADATA_DISABLED AWS_EC2_METADATA_SERVICE_ENDPOINT"
                " AWS_METADATA_ENDPOINT AWS_NO_SIGN_REQUEST AWS_SKIP_SIGNATURE"
            ),
        ),
        files=(".aws",),
        named=_names(
            "AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE AWS_WEB_IDENTITY_TOKEN_FILE"
            " AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE AWS_CA_BUNDLE"
        ),
        endpoint="AWS_ENDPOINT_URL",
        hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket"
        " set AWS_NO_SIGN_REQUEST=true.",
    ),
    "gs": Cloud(
        find=gcs,
        store="GCSStore",
        variables=("GOOGLE_", "CLOUDSDK_", "STORAGE_"),
        credentials=(
            *_GOOGLE_TOKENS,
            *_GOOGLE_ACCOUNT_FILE,
            _GOOGLE_ACCOUNT_KEY,
            *_names("GOOGLE_APPLICATION_CREDENTIALS CLOUDSDK_CONFIG GOOGLE_SKIP_SIGNATURE"),
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS",
        ),
        files=(".config/gcloud",),
        named=(*_GOOGLE_ACCOUNT_FILE, "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"),
        endpoint="STORAGE_EMULATOR_HOST",
        hint="Run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS to"
        " a key file; for a public bucket set GOOGLE_SKIP_SIGNATURE=true.",
    ),
    "az": Cloud(
        find=azure,
        store="AzureStore",
        variables=("AZURE_", "AZURITE_", "IDENTITY_ENDPOINT", "IDENTITY_HEADER"),
        credentials=(
            *_AZURE_OF_ONE_ACCOUNT,
            *_AZURE_JOB_VARIABLES,
            *_names("AZURE_STORAGE_TOKEN AZURE_CONFIG_DIR AZURE_SKIP_SIGNATURE"),
        ),
        files=(".azure",),
        named=("AZURE_CONFIG_DIR", "AZURE_FEDERATED_TOKEN_FILE"),
        endpoint="AZURE_STORAGE_ENDPOINT",
        hint="Set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY"
        " or AZURE_STORAGE_SAS_TOKEN, or run 'az login'; for a public container set"
        " AZURE_SKIP_SIGNATURE=true.",
    ),
    "oss": Cloud(
        find=oss,
        store="S3Store",
        variables=("OSS_", "ALIBABA_"),
        credentials=(*_OSS_KEYS[0], *_OSS_KEYS[1], "OSS_CONFIG_FILE", "OSS_SKIP_SIGNATURE"),
        files=(".ossutilconfig",),
        named=("OSS_CONFIG_FILE",),
        endpoint="OSS_ENDPOINT",
        hint="Set OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET, or run 'ossutil config'.",
    ),
}

_profiles: dict[str, dict[str, str]] = {}


def set_profile(uri: str, variables: Mapping[str, str]) -> None:
    """Set variables that override the environment below a URI; an empty mapping removes them."""
    _profiles[uri.rstrip("/")] = dict(variables)


def profiles() -> dict[str, dict[str, str]]:
    """Return the variables that `set_profile` has set, by URI."""
    return dict(_profiles)


def variables_of(uri: RemoteUri) -> tuple[Mapping[str, str], frozenset[str]]:
    """Return the variables that apply to a URI, and those of the process that do not."""
    place = f"{uri}/"
    above = [root for root in _profiles if place.startswith(f"{root}/")]
    if not above:
        return os.environ, frozenset()
    profile = _profiles[max(above, key=len)]
    variables = _overlaid(uri.cloud, os.environ, profile)
    return variables, frozenset(os.environ.keys() - variables.keys())


def _overlaid(cloud: str, environment: Environment, own: Environment) -> dict[str, str]:
    """Override the environment with the variables of a root.

    A root that sets one credential of its cloud gets no other from the environment, so that the two
    do not mix; one that sets an Azure account gets none of another account.
    """
    replaced = set[str]()
    known = CLOUDS[cloud].credentials
    if not own.keys().isdisjoint(known):
        replaced.update(known)
    if cloud == "az" and not own.keys().isdisjoint(_AZURE_ACCOUNT):
        replaced.update(_AZURE_ACCOUNT, _AZURE_OF_ONE_ACCOUNT)
    kept = {name: value for name, value in environment.items() if name not in replaced}
    return {**kept, **own}


def credentials(variables: Mapping[str, str], uris: Iterable[str]) -> dict[str, str]:
    """Return only the variables that the clouds of these URIs use."""
    known = tuple(start for cloud in _clouds(uris) for start in CLOUDS[cloud].variables)
    return {name: value for name, value in variables.items() if name.upper().startswith(known)}


def credential_files(variables: Mapping[str, str], uris: Iterable[str]) -> tuple[Path, ...]:
    """Return only the credential files that the clouds of these URIs read."""
    home = Path(variables.get("HOME") or Path.home())
    found = [path for cloud in _clouds(uris) for path in _login_files(cloud, variables, home)]
    return tuple(dict.fromkeys(found))


def _login_files(cloud: str, env: Environment, home: Path) -> list[Path]:
    """Return the files and directories with credentials that a cloud's storage may read."""
    own = [home / name for name in CLOUDS[cloud].files]
    named = [Path(env[name]).expanduser() for name in CLOUDS[cloud].named if env.get(name)]
    return [path for path in (*own, *named) if path.is_absolute() and path.exists()]


def _clouds(uris: Iterable[str]) -> list[str]:
    found = {SCHEMES[uri.partition("://")[0]] for uri in uris if is_remote(uri)}
    return sorted(found - {"memory"})
