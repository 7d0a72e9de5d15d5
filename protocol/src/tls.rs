//! Mutual TLS between the ranks and agents of an attempt: TLS 1.3 only, and both ends have a certificate of
//! the attempt.

use crate::TlsIdentity;
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, version};
use std::fmt::Display;
use std::sync::Arc;

/// The TLS configurations of a rank or agent, for both ends of a connection.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// Parses the certificates of an identity. `Err` describes the invalid part.
    pub fn new(identity: &TlsIdentity) -> Result<Self, String> {
        let bad = |what: &str, error: &dyn Display| format!("the identity's {what}: {error}");
        let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes());
        let authority = pem(&identity.authority).map_err(|error| bad("authority", &error))?;
        let certificate = pem(&identity.certificate).map_err(|error| bad("certificate", &error))?;
        let key =
            || PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|error| bad("key", &error));
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|error| bad("authority", &error))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(default_provider());
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| bad("protocol", &error))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(vec![certificate.clone()], key()?)
            .map_err(|error| bad("key", &error))?;
        client.resumption = Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| bad("authority", &error))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| bad("protocol", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key()?)
            .map_err(|error| bad("key", &error))?;
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// Returns the connecting end of a connection. Its handshake fails unless the other end's certificate has
    /// the name `peer`.
    pub fn client(&self, peer: &str) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.client), server_name(peer)?)
    }

    /// Returns the accepting end of a connection. The caller must check the other end's name with
    /// [`verify_client_name`].
    pub fn server(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.server))
    }
}

/// Checks that the other end's certificate has the name `claimed`.
pub fn verify_client_name(connection: &ServerConnection, claimed: &str) -> Result<(), rustls::Error> {
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.ok_or(rustls::Error::NoCertificatesPresented)?;
    verify_server_name(&ParsedCertificate::try_from(certificate)?, &server_name(claimed)?)
}

fn server_name(name: &str) -> Result<ServerName<'static>, rustls::Error> {
    ServerName::try_from(name.to_owned()).map_err(|error| rustls::Error::General(error.to_string()))
}
