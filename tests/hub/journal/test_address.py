"""Which URLs name a store, and that none shows its password."""

import pytest

from taskmesh.errors import ConfigError
from taskmesh.hub.journal.address import JournalAddress, looks_like_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://host", "redis://host:6379/0"),
        ("rediss://user:secret@host:7000/3", "rediss://host:7000/3"),
        ("redis://[::1]:6380/1", "redis://[::1]:6380/1"),
        ("rediss://host/2?ssl_ca_certs=/ca.pem", "rediss://host:6379/2"),
        ("unix:///run/redis.sock?db=4", "unix:///run/redis.sock?db=4"),
    ],
)
def test_good_ones(url, shown):
    address = JournalAddress.of(url)

    assert address.shown == shown
    assert address.secret == ("secret" in url)
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("", "begins with redis://"),
        ("http://host", "begins with redis://"),
        ("127.0.0.1:6379", "begins with redis://"),
        ("redis://", "does not name a server"),
        ("redis://host/first", "database's number"),
        ("redis://host:port/0", "cannot be read"),
        ("redis://[::1/0", "cannot be read"),
        ("unix://?db=0", "does not name a server"),
        ("redis://host/0?password=hush", "before the host"),
        ("redis://host/0?socket_timeout=hush", "options that are unknown: socket_timeout"),
        ("ftp://user:hush@host", "begins with redis://"),
        ("redis:/user:hush@host/0", "does not name a server"),
        ("redis:user:hush@host/0", "does not name a server"),
        ("redis//user:hush@host", "begins with redis://"),
        ("//user:hush@host", "begins with redis://"),
        ("user:hush@host:6379/0", "begins with redis://"),
        ("hush@host", "begins with redis://"),
        ("unix:user:hush@/run/redis.sock", "does not name a server"),
    ],
)
def test_others_are_refused_with_the_cure_and_without_the_password(url, cure):
    with pytest.raises(ConfigError, match=cure) as caught:
        JournalAddress.of(url)

    assert "hush" not in str(caught.value)
    assert looks_like_url(url) or not url


@pytest.mark.parametrize(
    "name", ["journal", "/data/a:b@c/journal", "./redis:x@y", "../a@b", "data/journal.db", ""]
)
def test_names_of_files_do_not_look_like_urls(name):
    assert not looks_like_url(name)
