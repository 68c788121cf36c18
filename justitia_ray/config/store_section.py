"""`store`: where the state is kept, and how it is reached."""

from typing import Literal

from pydantic import model_validator

from justitia_ray.config.section import Positive, Section
from justitia_ray.errors import ConfigError
from justitia_ray.store.redis_url import Setup, read_redis_url


class StoreSection(Section):
    """Redis: an embedded server, or one that is there."""

    durability: Literal["batched", "strict", "none"] = "batched"
    """`batched`: what changed is saved every `save_interval_s`. `strict`: a tag is in Redis before
    it is given out, which costs an application about a millisecond. `none`: no Redis at all; what
    the scheduler knows of order ends with it, what the predictor learned with that."""
    redis_url: str | None = None
    """One server, Sentinel or a cluster (`store.redis_url.FORMS`), no password; None: embedded."""
    redis_username: str | None = None
    """Of Redis's access control list; None: its default user."""
    redis_password_env: str | None = None
    """Name of the environment variable that holds the password."""
    redis_sentinel_password_env: str | None = None
    """Name of the variable with the Sentinels' own password."""
    redis_tls_ca_file: str | None = None
    """Certificates that are trusted, on every node; None: those of the system."""
    redis_tls_cert_file: str | None = None
    """Our own certificate, where Redis asks for one."""
    redis_tls_key_file: str | None = None
    """Its key; None: in the same file."""
    data_dir: str = "~/.local/share/justitia_ray"
    """Where the embedded server keeps its data."""
    save_interval_s: Positive = 0.5
    """State at risk if scheduler and machine die together; the design allows 1 s."""
    strict_timeout_s: Positive = 5.0
    """With `strict`: new applications are refused with 503 when Redis takes longer."""

    @model_validator(mode="after")
    def _fits_together(self) -> "StoreSection":
        try:
            url = None if self.redis_url is None else read_redis_url(self.redis_url)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self.durability == "none" and url is not None:
            raise ValueError("durability is none: no redis_url is allowed, nothing is stored")
        for name in ("username", "password_env"):
            if getattr(self, f"redis_{name}") is not None and url is None:
                raise ValueError(f"redis_{name} is for a redis_url; none is given")
        if self.redis_sentinel_password_env is not None and (
            url is None or url.setup is not Setup.SENTINEL
        ):
            raise ValueError(
                "redis_sentinel_password_env is for a redis_url that begins with redis+sentinel://"
                " or rediss+sentinel://"
            )
        for name in ("ca_file", "cert_file", "key_file"):
            if getattr(self, f"redis_tls_{name}") is not None and (url is None or not url.tls):
                raise ValueError(
                    f"redis_tls_{name} is for a redis_url with TLS: rediss://,"
                    " rediss+sentinel:// or rediss+cluster://"
                )
        if self.redis_tls_key_file is not None and self.redis_tls_cert_file is None:
            raise ValueError("redis_tls_key_file is the key of redis_tls_cert_file: name that too")
        return self
