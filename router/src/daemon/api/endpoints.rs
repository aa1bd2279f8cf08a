//! The table of all requests. The server's routes, the OpenAPI document and the table of requests in
//! docs/reference/api.md are made of it, so none of them can miss one.
//!
//! Requests are under `/v1`, except `GET /metrics`, whose place is a convention of Prometheus. Under `/v1`, fields and requests may
//! be added, but none is changed or removed.

use super::{
    ConnectionsQuery, MAX_BODY_BYTES, MAX_FLOWS_BYTES, MAX_SAS_BYTES, Query, Served, Url, ask, capture,
    capture_report, change_flows, change_sas, controllers, cores_report, end_capture, events, explain,
    list_flows, list_sas, reload,
};
use crate::{
    api::{
        ApiError, EventsQuery, FlowsQuery, RouteQuery,
        capture::{CaptureReport, CaptureRequest},
        cores::{CoresReport, EventReport},
        flows::{FlowReport, FlowsChanged, FlowsRequest},
        routes::{NeighbourReport, NeighboursQuery, RoutesQuery, RoutesReport},
        sas::{SasReport, SasRequest},
        status::{
            ConnectionReport, ExplainReport, ExplainRequest, FirewallReport, InterfaceReport, PortReport,
            ReloadReport, RouteReport, RouterReport, Status, StopReport, VerifyReport,
        },
    },
    daemon::{api::document, metrics},
    switch::controllers::ControllersReport,
};
use axum::{
    extract::{DefaultBodyLimit, State},
    http::header::CONTENT_TYPE,
    routing::{self, MethodRouter},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Writes the schema of a type.
pub type TypeSchema = fn(&mut SchemaGenerator) -> Schema;

/// What an answer holds.
#[derive(Clone, Copy)]
pub enum Content {
    Json(TypeSchema),
    /// A line of JSON for each.
    Lines(TypeSchema),
    /// Text of this content type.
    Text(&'static str),
    /// A file of this content type.
    File(&'static str),
    /// The OpenAPI document.
    Document,
}

/// A request.
pub struct Endpoint {
    /// `get`, `post` or `delete`.
    pub method: &'static str,
    pub path: &'static str,
    /// What it is for, as a sentence.
    pub summary: &'static str,
    /// The words of the commands that send it; empty: none does.
    pub commands: &'static [&'static str],
    /// The read-only socket and the address of the web page serve it, too. It changes nothing and costs little. It shows nothing that
    /// Linux shows only to root.
    pub is_for_readers: bool,
    pub query: Option<TypeSchema>,
    /// The body, and its largest size in bytes.
    pub body: Option<(TypeSchema, usize)>,
    pub answer: Content,
    /// Statuses of errors that are its own, besides those of [`Endpoint::errors`].
    own_errors: &'static [u16],
    pub handler: MethodRouter<Served>,
}

impl Endpoint {
    fn new(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        answer: Content,
        handler: MethodRouter<Served>,
    ) -> Self {
        Self {
            method,
            path,
            summary,
            commands: &[],
            is_for_readers: false,
            query: None,
            body: None,
            answer,
            own_errors: &[],
            handler,
        }
    }

    fn get(
        path: &'static str,
        summary: &'static str,
        answer: Content,
        handler: MethodRouter<Served>,
    ) -> Self {
        Self::new("get", path, summary, answer, handler)
    }

    fn post(
        path: &'static str,
        summary: &'static str,
        answer: Content,
        handler: MethodRouter<Served>,
    ) -> Self {
        Self::new("post", path, summary, answer, handler)
    }

    fn for_readers(self) -> Self {
        Self { is_for_readers: true, ..self }
    }

    fn by(self, commands: &'static [&'static str]) -> Self {
        Self { commands, ..self }
    }

    fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(schema::<T>), ..self }
    }

    fn body<T: JsonSchema>(self, limit: usize) -> Self {
        let handler = self.handler.layer(DefaultBodyLimit::max(limit));
        Self { body: Some((schema::<T>, limit)), handler, ..self }
    }

    fn fails_with(self, own_errors: &'static [u16]) -> Self {
        Self { own_errors, ..self }
    }

    /// The statuses of the errors that it can answer, in ascending order.
    pub fn errors(&self) -> Vec<u16> {
        let mut errors = vec![500, 503];
        errors.extend(self.own_errors);
        errors.extend((!self.is_for_readers).then_some(403));
        errors.extend(self.query.map(|_| 400));
        errors.extend(self.body.iter().flat_map(|_| [400, 408, 413]));
        errors.sort();
        errors.dedup();
        errors
    }

    /// The handler in place of this one where the request is not served.
    pub fn refusal(&self, error: fn() -> ApiError) -> MethodRouter<Served> {
        let refuse = move || async move { error() };
        match self.method {
            "get" => routing::get(refuse),
            "delete" => routing::delete(refuse),
            _ => routing::post(refuse),
        }
    }
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn json<T: JsonSchema>() -> Content {
    Content::Json(schema::<T>)
}

/// Sends a query without parameters to the control thread.
fn fixed(query: Query) -> MethodRouter<Served> {
    routing::get(move |State(served): State<Served>| ask(served.requests, query.clone()))
}

/// All requests, in the order of the documents.
pub fn endpoints() -> Vec<Endpoint> {
    let mut all = of_state();
    all.extend(of_packets());
    all.extend(of_captures());
    all.extend(of_control());
    all
}

/// Requests about the state of the daemon, as the control thread has it.
fn of_state() -> Vec<Endpoint> {
    let get = Endpoint::get;
    vec![
        get("/v1/status", "The overall state.", json::<Status>(), fixed(Query::Status))
            .for_readers()
            .by(&["status"]),
        get("/v1/ports", "All ports.", json::<Vec<PortReport>>(), fixed(Query::Ports))
            .for_readers()
            .by(&["ports"]),
        get("/v1/routers", "All routers.", json::<Vec<RouterReport>>(), fixed(Query::Routers))
            .for_readers()
            .by(&["routers"]),
        get(
            "/v1/interfaces",
            "The interfaces of all routers.",
            json::<Vec<InterfaceReport>>(),
            fixed(Query::Interfaces),
        )
        .for_readers()
        .by(&["interfaces"]),
        get(
            "/v1/firewall",
            "What the firewall rules of each router mean.",
            json::<Vec<FirewallReport>>(),
            fixed(Query::Firewall),
        )
        .by(&["firewall"]),
        get(
            "/v1/connections",
            "The connections that match all parameters given, at most 100000.",
            json::<Vec<ConnectionReport>>(),
            routing::get(|State(served): State<Served>, Url(query): Url<ConnectionsQuery>| {
                ask(served.requests, Query::Connections(query))
            }),
        )
        .query::<ConnectionsQuery>()
        .by(&["connections"]),
        get(
            "/v1/route",
            "The fast table's answer for an address.",
            json::<RouteReport>(),
            routing::get(|State(served): State<Served>, Url(query): Url<RouteQuery>| {
                ask(served.requests, Query::Route(query))
            }),
        )
        .query::<RouteQuery>()
        .fails_with(&[404])
        .for_readers()
        .by(&["routes"]),
        get(
            "/v1/routes",
            "Routes of a fast table.",
            json::<RoutesReport>(),
            routing::get(|State(served): State<Served>, Url(query): Url<RoutesQuery>| {
                ask(served.requests, Query::Routes(query))
            }),
        )
        .query::<RoutesQuery>()
        .fails_with(&[404])
        .by(&["routes"]),
        get(
            "/v1/neighbours",
            "Neighbours, and whether the fast path uses each.",
            json::<Vec<NeighbourReport>>(),
            routing::get(|State(served): State<Served>, Url(query): Url<NeighboursQuery>| {
                ask(served.requests, Query::Neighbours(query))
            }),
        )
        .query::<NeighboursQuery>()
        .fails_with(&[404])
        .by(&["neighbours"]),
        get(
            "/v1/verify",
            "Compares the fast tables with Linux, one comparison at a time. It may take seconds.",
            json::<VerifyReport>(),
            fixed(Query::Verify),
        )
        .by(&["routes --verify"]),
    ]
}

/// Requests about packets: where they go, on which cores, and by which rules.
fn of_packets() -> Vec<Endpoint> {
    let (get, post) = (Endpoint::get, Endpoint::post);
    vec![
        post(
            "/v1/explain",
            "Runs the program on a packet, and sends nothing.",
            json::<ExplainReport>(),
            routing::post(explain),
        )
        .body::<ExplainRequest>(MAX_BODY_BYTES)
        .fails_with(&[404])
        .by(&["explain"]),
        get(
            "/v1/cores",
            "Cores, queues and pinned workloads.",
            json::<CoresReport>(),
            routing::get(cores_report),
        )
        .for_readers()
        .by(&["cores"]),
        get(
            "/v1/events",
            "Decisions about queues and cores. The daemon keeps the last 1024.",
            json::<Vec<EventReport>>(),
            routing::get(events),
        )
        .query::<EventsQuery>()
        .for_readers()
        .by(&["events"]),
        get(
            "/v1/controllers",
            "OpenFlow controllers and listeners, and their connections.",
            json::<ControllersReport>(),
            routing::get(controllers),
        )
        .for_readers()
        .by(&["controllers"]),
        get(
            "/v1/flows",
            "The flow rules that the match covers, one per line.",
            Content::Lines(schema::<FlowReport>),
            routing::get(list_flows),
        )
        .query::<FlowsQuery>()
        .by(&["flows list", "flows watch"]),
        post(
            "/v1/flows",
            "Adds, modifies and deletes flow rules.",
            json::<FlowsChanged>(),
            routing::post(change_flows),
        )
        .body::<FlowsRequest>(MAX_FLOWS_BYTES)
        .by(&["flows add", "flows mod", "flows del"]),
        get(
            "/v1/sas",
            "All security associations, without keys.",
            json::<SasReport>(),
            routing::get(list_sas),
        )
        .by(&["sas"]),
        post(
            "/v1/sas",
            "Sets and removes security associations. The changes are in force when it answers.",
            json::<SasReport>(),
            routing::post(change_sas),
        )
        .body::<SasRequest>(MAX_SAS_BYTES)
        .by(&["sas set", "sas remove"]),
    ]
}

/// Requests about captures.
fn of_captures() -> Vec<Endpoint> {
    vec![
        Endpoint::post(
            "/v1/capture",
            "Captures packets until the client disconnects. The answer is a pcapng file. One capture runs at a time.",
            Content::File(document::PCAPNG),
            routing::post(capture),
        )
        .body::<CaptureRequest>(MAX_BODY_BYTES)
        .fails_with(&[404])
        .by(&["capture"]),
        Endpoint::get(
            "/v1/capture",
            "The running capture, or the last one.",
            json::<CaptureReport>(),
            routing::get(capture_report),
        )
        .for_readers()
        .by(&["capture"]),
        Endpoint::new(
            "delete",
            "/v1/capture",
            "Ends the running capture. Its client still gets the packets captured so far.",
            json::<CaptureReport>(),
            routing::delete(end_capture),
        )
        .by(&["capture"]),
    ]
}

/// Requests about the daemon itself.
fn of_control() -> Vec<Endpoint> {
    let (get, post) = (Endpoint::get, Endpoint::post);
    vec![
        post(
            "/v1/reload",
            "Reads the configuration file again. The changes are in force when it answers.",
            json::<ReloadReport>(),
            routing::post(reload),
        )
        .fails_with(&[400])
        .by(&["reload"]),
        post(
            "/v1/stop",
            "Removes everything from the kernel, and ends the daemon.",
            json::<StopReport>(),
            routing::post(|State(served): State<Served>| ask(served.requests, Query::Stop)),
        )
        .by(&["stop"]),
        get(
            "/v1/openapi.json",
            "This API as an OpenAPI document.",
            Content::Document,
            routing::get(|| async { ([(CONTENT_TYPE, "application/json")], document::text()) }),
        )
        .for_readers(),
        get(
            "/metrics",
            "Metrics for Prometheus.",
            Content::Text(metrics::OPEN_METRICS),
            routing::get(|State(served): State<Served>| {
                metrics::Source::answer_to(State(served.sources.metrics))
            }),
        )
        .for_readers()
        .by(&["metrics"]),
    ]
}
