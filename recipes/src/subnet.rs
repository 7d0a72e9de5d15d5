//! A range of IP addresses, such as `10.0.0.0/16`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of IP addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    address: IpAddr,
    /// Length of the common prefix in bits: at most 32, or 128 for IPv6.
    bits: u8,
}

impl Subnet {
    /// Returns `true` if `address` is in the subnet.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a network such as \"10.0.0.0/16\"");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits: u8 = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?;
        Ok(Self { address, bits })
    }
}

impl TryFrom<String> for Subnet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(network: Subnet) -> Self {
        network.to_string()
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_a_network_by_its_leading_bits() {
        let is_in = |network: &str, address: &str| {
            let network: Subnet = network.parse().expect("a network");
            network.contains(address.parse().expect("an address"))
        };
        assert!(is_in("10.1.0.0/16", "10.1.255.7") && !is_in("10.1.0.0/16", "10.2.0.1"));
        assert!(is_in("10.1.2.3/32", "10.1.2.3") && !is_in("10.1.2.3/32", "10.1.2.2"));
        assert!(is_in("0.0.0.0/0", "192.168.0.1") && !is_in("0.0.0.0/0", "::1"));
        assert!(is_in("fd00::/8", "fd12::1") && !is_in("fd00::/8", "fe80::1"));
        for wrong in
            ["10.0.0.0", "10.0.0.0/33", "10.0.0/16", "fd00::/129", "eth0/16", "10.0.0.0/", "10.0.0.0/-1"]
        {
            assert!(wrong.parse::<Subnet>().is_err(), "{wrong}");
        }
    }
}
