"""Listen addresses as operators write them."""

from __future__ import annotations

import socket

import pytest

from stepscope.errors import ConfigError
from stepscope.runtime import listen
from stepscope.runtime.listen import ListenAddress

EXAMPLE = "for example :10094 or 127.0.0.1:10094"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":10094", "", 10094),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:9", "::1", 9),
        ("[::]:10094", "::", 10094),
        ("0.0.0.0:10094", "0.0.0.0", 10094),
        ("localhost:65535", "localhost", 65535),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_usual_spellings_are_understood_and_written_back(text: str, host: str, port: int) -> None:
    """What was read prints as it was written."""
    assert listen.parse(text) == ListenAddress(host, port)
    assert str(listen.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tcp://10.0.0.1:80", f'"tcp://10.0.0.1:80" is a URL, not an address; give HOST:PORT, {EXAMPLE}'),
        ("", f'"" is not HOST:PORT; {EXAMPLE}'),
        ("10094", f'"10094" is not HOST:PORT; {EXAMPLE}'),
        ("[::1]", f'"[::1]" is not HOST:PORT; {EXAMPLE}'),
        ("::1:9", '"::1:9": an IPv6 address needs brackets, for example [::1]:10094'),
        ("[::g]:9", '"[::g]:9": "::g" is not an IPv6 address'),
        ("[127.0.0.1]:9", '"[127.0.0.1]:9": "127.0.0.1" is not an IPv6 address'),
        (":http", '":http": port "http" is not a number from 0 to 65535'),
        (":65536", '":65536": port "65536" is not a number from 0 to 65535'),
        (":-1", '":-1": port "-1" is not a number from 0 to 65535'),
        (":", '":": port "" is not a number from 0 to 65535'),
        ("a host:80", '"a host:80": "a host" is not a host name or address'),
    ],
)
def test_other_spellings_are_refused_with_one_line(text: str, message: str) -> None:
    """The line names the flag, repeats the value and says what is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        listen.parse(text)
    assert str(caught.value) == f"--web.listen-address: {message}"


def reaches(family: int, host: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        return client.connect_ex((host, port)) == 0


def test_every_address_means_both_families() -> None:
    """An empty host serves IPv4 clients everywhere and IPv6 clients where the machine has IPv6."""
    with listen.bind(listen.parse(":0")) as listener:
        port = listen.name_of(listener).port
        assert reaches(socket.AF_INET, "127.0.0.1", port)
        if listener.family == socket.AF_INET6:
            assert reaches(socket.AF_INET6, "::1", port)


def test_one_family_is_only_that_family() -> None:
    """0.0.0.0 is IPv4 alone; localhost is where clients that say localhost mostly arrive."""
    for text in ("0.0.0.0:0", "127.0.0.1:0", "localhost:0"):
        with listen.bind(listen.parse(text)) as listener:
            assert listener.family == socket.AF_INET
            assert reaches(socket.AF_INET, "127.0.0.1", listen.name_of(listener).port)


def test_an_ipv6_address_is_served_where_the_machine_has_it() -> None:
    """[::1] accepts IPv6 clients."""
    try:
        listener = listen.bind(listen.parse("[::1]:0"))
    except ConfigError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listener:
        assert str(listen.name_of(listener)).startswith("[::1]:")
        assert reaches(socket.AF_INET6, "::1", listen.name_of(listener).port)


@pytest.mark.parametrize("host", ["192.0.2.1", "host.invalid"])
def test_an_address_that_is_not_here_is_one_line(host: str) -> None:
    """192.0.2.0/24 and .invalid are reserved: no machine has them (RFC 5737, RFC 6761)."""
    with pytest.raises(ConfigError, match=rf"^--web.listen-address: cannot listen on {host}:10094: [^\n]+$"):
        listen.bind(listen.parse(f"{host}:10094"))
