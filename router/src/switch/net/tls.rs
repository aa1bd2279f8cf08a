//! TLS with certificates on both sides.
//!
//! Every peer with a certificate of the CA may control this switch. The name in the certificate is not compared
//! with the dialled host. Open vSwitch does the same: its `ovs-pki` writes certificates without host names.

use crate::config::TlsFiles;
use anyhow::{Context, Result, bail};
use std::{fs, io, net::IpAddr, path::Path, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor, TlsConnector, client,
    rustls::{
        CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
        SignatureScheme,
        client::{
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
            verify_server_cert_signed_by_trust_anchor,
        },
        crypto::{
            CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
            verify_tls13_signature,
        },
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
        server::{ParsedCertificate, WebPkiClientVerifier},
    },
    server,
};

/// The configurations for both sides of a handshake.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl Tls {
    /// Reads the files. An error names the file and its fault.
    pub fn load(files: &TlsFiles) -> Result<Self> {
        let key =
            fs::read(&files.key).with_context(|| format!("cannot read the key {}", files.key.display()))?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| {
            anyhow::anyhow!("{} holds no private key (PEM, without a password)", files.key.display())
        })?;
        let chain = certificates(&files.certificate, "the certificate")?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.ca, "the CA")? {
            let added = roots.add(certificate);
            added.with_context(|| format!("{} is not a CA's certificate", files.ca.display()))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let client = client(&provider, &roots, &chain, &key);
        let client = client.map_err(|error| blame(files, &error))?;
        let server = server(&provider, &roots, chain, key).map_err(|error| blame(files, &error))?;
        Ok(Self { connector: Arc::new(client).into(), acceptor: Arc::new(server).into() })
    }

    /// Makes a handshake with a peer that was dialled.
    pub async fn connect(
        &self,
        host: &str,
        address: IpAddr,
        stream: TcpStream,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).unwrap_or(ServerName::IpAddress(address.into()));
        self.connector.connect(name, stream).await
    }

    /// Makes a handshake with a peer that dialled.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        self.acceptor.accept(stream).await
    }
}

fn certificates(file: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let pem = fs::read(file).with_context(|| format!("cannot read {what} {}", file.display()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => bail!("{} holds no certificate (PEM)", file.display()),
    }
}

/// An error that names the file at fault.
fn blame(files: &TlsFiles, error: &Error) -> anyhow::Error {
    let (key, certificate) = (files.key.display(), files.certificate.display());
    match error {
        Error::InconsistentKeys(_) => {
            anyhow::anyhow!("the key {key} does not belong to the certificate {certificate}")
        }
        Error::InvalidCertificate(CertificateError::BadEncoding) => {
            anyhow::anyhow!("{certificate} is not a certificate of X.509 version 3")
        }
        other => anyhow::anyhow!("the key {key} and the certificate {certificate} cannot be used: {other}"),
    }
}

fn client(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<ClientConfig, Error> {
    let algorithms = provider.signature_verification_algorithms;
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(FromCa { roots: roots.clone(), algorithms }))
        .with_client_auth_cert(chain.to_vec(), key.clone_key())
}

fn server(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
}

/// Accepts a controller whose certificate comes from the CA, under any name.
#[derive(Debug)]
struct FromCa {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for FromCa {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
