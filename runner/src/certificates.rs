//! The TLS certificates of one attempt. The authority's key never leaves the memory of the process that
//! creates it.

use dtrain_protocol::{AttemptId, Rank, TlsIdentity, TrialId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Issues one TLS certificate with its key for each of `ranks`. The authority that signs them is discarded on
/// return.
pub(crate) fn rank_certificates(
    trial: &TrialId,
    attempt: AttemptId,
    ranks: u32,
) -> Result<Vec<TlsIdentity>, rcgen::Error> {
    issue_all(trial, attempt, (0..ranks).map(|rank| TlsIdentity::name(trial, attempt, Rank(rank))))
}

/// Issues one TLS certificate with its key for the agent of each of `hosts`.
pub(crate) fn agent_certificates(
    trial: &TrialId,
    attempt: AttemptId,
    hosts: u32,
) -> Result<Vec<TlsIdentity>, rcgen::Error> {
    issue_all(trial, attempt, (0..hosts).map(|host| TlsIdentity::agent_name(trial, attempt, host)))
}

fn issue_all(
    trial: &TrialId,
    attempt: AttemptId,
    names: impl Iterator<Item = String>,
) -> Result<Vec<TlsIdentity>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, format!("dtrain {trial} {attempt}"));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    names.map(|name| issue(name, &authority, &issuer)).collect()
}

fn issue(name: String, authority: &str, issuer: &Issuer<'_, KeyPair>) -> Result<TlsIdentity, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.clone()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?.pem();
    Ok(TlsIdentity { authority: authority.into(), certificate, key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, UnixTime};
    use rustls::server::WebPkiClientVerifier;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    #[test]
    fn a_certificate_of_an_attempt_holds_whatever_the_clocks_of_its_hosts_say() {
        let trial = TrialId("01JZX0000000000000000000AB".into());
        let made = rank_certificates(&trial, AttemptId(2), 1).expect("a key pair").remove(0);
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(der(&made.authority)).expect("an authority");
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.expect("a verifier");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        let (hour, year) = (Duration::from_secs(3600), Duration::from_secs(365 * 86_400));
        let clocks = [now - hour, now, now + hour, now - 20 * year, now + 30 * year];
        for clock in clocks {
            let time = UnixTime::since_unix_epoch(clock);
            let admitted = verifier.verify_client_cert(&der(&made.certificate), &[], time);
            assert!(admitted.is_ok(), "by a clock at {} s: {admitted:?}", clock.as_secs());
        }
    }

    #[test]
    fn each_rank_has_its_own_key_and_all_one_authority() {
        let trial = TrialId("01JZX0000000000000000000AB".into());
        let made = rank_certificates(&trial, AttemptId(2), 3).expect("a key pair");
        assert_eq!(made.len(), 3);
        assert!(made.iter().all(|one| one.authority == made[0].authority));
        assert!(made[0].key != made[1].key && made[0].certificate != made[1].certificate);
        assert!(!made[0].authority.contains("PRIVATE"));
    }
}
