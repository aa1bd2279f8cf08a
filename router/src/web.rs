//! The web page: its files, and the requests that it may make.
//!
//! The files are compiled in, and the browser builds the page. [`crate::daemon`] serves them, beside requests of
//! the API.
//!
//! | file | holds |
//! |---|---|
//! | `files.rs` | the table of the files of the page |
//! | `origin.rs` | which requests a browser sent for the page itself |
//! | `page/` | HTML, CSS and JavaScript |

mod files;
mod origin;

pub use files::{FILES, StaticFile};
pub use origin::Foreign;

use crate::api::ApiError;
use axum::{
    Router,
    extract::Request,
    http::{
        HeaderName, HeaderValue,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
            X_FRAME_OPTIONS,
        },
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};

/// What a browser may do with an answer: scripts, styles, pictures and requests of this origin alone, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Headers of every answer. Nothing may be stored, because files change with the daemon and answers with every second.
const HEADERS: [(HeaderName, &str); 8] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=(), usb=()"),
];

/// The files of the page.
pub fn files<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |routes, file| {
        routes.route(file.path, get(move || async { ([(CONTENT_TYPE, file.content_type)], file.body) }))
    })
}

/// Refuses requests that other web pages made, and adds the headers to every answer of these routes. `port` is the port
/// that is listened on.
pub fn protected(routes: Router, port: u16) -> Router {
    routes.layer(middleware::from_fn(move |request: Request, next: Next| {
        let checked = origin::check(&request, port);
        async move {
            let mut answer = match checked {
                Ok(()) => next.run(request).await,
                Err(foreign) => foreign.into_response(),
            };
            add_headers(&mut answer);
            answer
        }
    }))
}

/// An answer that no handler makes, with the headers.
pub fn refusal(error: ApiError) -> Response {
    let mut answer = error.into_response();
    add_headers(&mut answer);
    answer
}

fn add_headers(answer: &mut Response) {
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}
