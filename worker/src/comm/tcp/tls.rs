//! Who may talk to whom: TLS 1.3 alone, both sides with a certificate of this attempt.

use super::super::{CommError, Seat};
use dtrain_protocol::{Rank, TlsIdentity};
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, version};
use std::sync::Arc;

/// Bytes that wait in one connection to be sent.
const SEND_BUFFER: usize = 256 << 10;

/// What both ends of a connection need.
#[derive(Debug)]
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// `Err` when the identity cannot be understood.
    pub(super) fn new(identity: &TlsIdentity) -> Result<Self, CommError> {
        let bad = |what: &str, error: &dyn std::fmt::Display| {
            CommError::Link(format!("the identity's {what}: {error}"))
        };
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

    /// The connecting end; the handshake fails unless the other is `peer` of the seat's attempt.
    pub(super) fn client(&self, seat: &Seat, peer: Rank) -> Result<ClientConnection, rustls::Error> {
        let name = name_of(seat, peer)?;
        let mut connection = ClientConnection::new(Arc::clone(&self.client), name)?;
        connection.set_buffer_limit(Some(SEND_BUFFER));
        Ok(connection)
    }

    /// The accepting end; who the other is must still be asked with [`prove`].
    pub(super) fn server(&self) -> Result<ServerConnection, rustls::Error> {
        let mut connection = ServerConnection::new(Arc::clone(&self.server))?;
        connection.set_buffer_limit(Some(SEND_BUFFER));
        Ok(connection)
    }
}

/// Fails unless the other end's certificate is that of rank `claimed` of the seat's attempt.
pub(super) fn prove(connection: &ServerConnection, seat: &Seat, claimed: Rank) -> Result<(), rustls::Error> {
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.ok_or(rustls::Error::NoCertificatesPresented)?;
    verify_server_name(&ParsedCertificate::try_from(certificate)?, &name_of(seat, claimed)?)
}

fn name_of(seat: &Seat, rank: Rank) -> Result<ServerName<'static>, rustls::Error> {
    let name = TlsIdentity::name(&seat.trial, seat.attempt, rank);
    ServerName::try_from(name).map_err(|error| rustls::Error::General(error.to_string()))
}
