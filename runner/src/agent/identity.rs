//! Certificates of one attempt. The authority's key never leaves the memory of the process that made it.

use dtrain_protocol::{AttemptId, Rank, TlsIdentity, TrialId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// One identity for each of `ranks`, all signed by an authority that is forgotten when this returns.
pub(crate) fn identities(
    trial: &TrialId,
    attempt: AttemptId,
    ranks: u32,
) -> Result<Vec<TlsIdentity>, rcgen::Error> {
    signed(trial, attempt, (0..ranks).map(|rank| TlsIdentity::name(trial, attempt, Rank(rank))))
}

/// The same for the agent of each of `hosts`.
pub(crate) fn agent_identities(
    trial: &TrialId,
    attempt: AttemptId,
    hosts: u32,
) -> Result<Vec<TlsIdentity>, rcgen::Error> {
    signed(trial, attempt, (0..hosts).map(|host| TlsIdentity::agent_name(trial, attempt, host)))
}

fn signed(
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
    names.map(|name| identity(name, &authority, &issuer)).collect()
}

fn identity(
    name: String,
    authority: &str,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<TlsIdentity, rcgen::Error> {
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

    #[test]
    fn each_rank_has_its_own_key_and_all_one_authority() {
        let trial = TrialId("01JZX0000000000000000000AB".into());
        let made = identities(&trial, AttemptId(2), 3).expect("a key pair");
        assert_eq!(made.len(), 3);
        assert!(made.iter().all(|one| one.authority == made[0].authority));
        assert!(made[0].key != made[1].key && made[0].certificate != made[1].certificate);
        assert!(!made[0].authority.contains("PRIVATE"));
    }
}
