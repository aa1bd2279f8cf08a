//! Tells requests that the page made from those of other pages in the same browser.
//!
//! A browser on this machine can be led to any address of it, by a name whose DNS entry points to loopback ("DNS rebinding") or
//! directly. So `Host` must be a loopback name or address with our port, and a request that another origin caused is refused.
//! `Origin` and `Sec-Fetch-Site` (Fetch Metadata Request Headers, W3C) say who caused it; pages cannot forge them. Clients that
//! are no browsers may leave both out.

use crate::api::ApiError;
use axum::{
    extract::Request,
    http::{
        HeaderMap,
        header::{AsHeaderName, HOST, ORIGIN},
    },
    response::{IntoResponse, Response},
};
use std::net::IpAddr;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// It names another host, or a port that is not ours.
    Host,
    /// A page of another origin caused it.
    Origin,
}

impl IntoResponse for Foreign {
    fn into_response(self) -> Response {
        let text = match self {
            Foreign::Host => {
                "refused: the address must be localhost or a loopback address, with the port of `[web] listen`. With ssh -L, \
                 use the same port on both sides"
            }
            Foreign::Origin => {
                "refused: another web page sent this request; type the address, or use a bookmark"
            }
        };
        ApiError { status: 403, text: text.into() }.into_response()
    }
}

/// Did the page itself, the user, or a program that is no browser make this request?
///
/// # Errors
/// No, or the request does not name its host.
pub fn check(request: &Request, port: u16) -> Result<(), Foreign> {
    let headers = request.headers();
    let host = only(headers, HOST).ok_or(Foreign::Host)?.ok_or(Foreign::Host)?;
    if !is_ours(host, port) || request.uri().authority().is_some_and(|named| named.as_str() != host) {
        return Err(Foreign::Host);
    }
    let origin = only(headers, ORIGIN).ok_or(Foreign::Origin)?;
    let is_other =
        |origin: &str| origin.strip_prefix("http://").is_none_or(|origin| !origin.eq_ignore_ascii_case(host));
    let site = only(headers, "sec-fetch-site").ok_or(Foreign::Origin)?;
    let is_foreign = |site: &str| !["same-origin", "none"].contains(&site);
    if origin.is_some_and(is_other) || site.is_some_and(is_foreign) {
        return Err(Foreign::Origin);
    }
    Ok(())
}

/// The value of a header that may be there once; `None`: it is there more than once, or is no text.
fn only(headers: &HeaderMap, name: impl AsHeaderName) -> Option<Option<&str>> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Some(None),
        (Some(value), None) => value.to_str().ok().map(Some),
        _ => None,
    }
}

/// Is this loopback, with this port?
fn is_ours(host: &str, port: u16) -> bool {
    let Some((name, of_host)) = host.rsplit_once(':') else { return false };
    let address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse().map(IpAddr::V6),
        None => name.parse().map(IpAddr::V4),
    };
    let is_loopback = address.is_ok_and(|address| address.is_loopback());
    of_host == port.to_string() && (is_loopback || name.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn checked(target: &str, headers: &[(&str, &str)]) -> Result<(), Foreign> {
        let request = headers
            .iter()
            .fold(axum::http::Request::get(target), |request, (name, value)| request.header(*name, *value));
        check(&request.body(Body::empty()).unwrap(), 9112)
    }

    #[test]
    fn only_loopback_names_with_our_port_are_hosts() {
        for host in ["[::1]:9112", "127.0.0.1:9112", "127.3.2.1:9112", "localhost:9112", "LocalHost:9112"] {
            assert_eq!(checked("/", &[("host", host)]), Ok(()), "{host}");
            assert_eq!(checked(&format!("http://{host}/"), &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "",
            "localhost",
            "localhost:80",
            "localhost:09112",
            "[::1]",
            "::1:9112",
            "127.0.0.1",
            "127.0.0.1:9111",
            "192.0.2.1:9112",
            "evil.example:9112",
            "localhost.evil.example:9112",
            "127.0.0.1.evil.example:9112",
            "localhost.:9112",
            "[::ffff:127.0.0.1]:9112",
            "[::1]:9112:9112",
            "user@localhost:9112",
        ] {
            assert_eq!(checked("/", &[("host", host)]), Err(Foreign::Host), "{host}");
        }
        assert_eq!(checked("/", &[]), Err(Foreign::Host));
        let both = [("host", "localhost:9112"), ("host", "evil.example")];
        assert_eq!(checked("/", &both), Err(Foreign::Host));
        let absolute = checked("http://evil.example/v1/status", &[("host", "localhost:9112")]);
        assert_eq!(absolute, Err(Foreign::Host));
    }

    #[test]
    fn requests_that_other_pages_caused_are_refused() {
        const HOST: (&str, &str) = ("host", "localhost:9112");
        for (name, value) in [
            ("origin", "http://localhost:9112"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(checked("/v1/status", &[HOST, (name, value)]), Ok(()), "{name}: {value}");
        }
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", ""),
            ("origin", "http://localhost:9111"),
            ("origin", "http://localhost"),
            ("origin", "https://localhost:9112"),
            // Another origin, although it is the same listener.
            ("origin", "http://127.0.0.1:9112"),
            ("origin", "localhost:9112"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "of-tomorrow"),
        ] {
            assert_eq!(
                checked("/v1/status", &[HOST, (name, value)]),
                Err(Foreign::Origin),
                "{name}: {value}"
            );
        }
        let both = [HOST, ("origin", "http://localhost:9112"), ("origin", "http://evil.example")];
        assert_eq!(checked("/v1/status", &both), Err(Foreign::Origin));
    }
}
