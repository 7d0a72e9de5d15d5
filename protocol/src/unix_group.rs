//! Detects private groups: Unix groups of a single user.

/// Returns `true` if the group `gid` of a file that user `uid` owns has no other members. `read` returns the
/// text of a file, empty if there is none.
///
/// It is private if its number equals the user's, as on most systems, or if `/etc/passwd` and `/etc/group`
/// show that it is the primary group of this user alone, has the user's name, and has no other members. The
/// group of root is never private.
pub fn is_private(uid: u32, gid: u32, read: impl Fn(&str) -> String) -> bool {
    uid != 0 && (gid == uid || is_private_by(&read("/etc/passwd"), &read("/etc/group"), uid, gid))
}

fn is_private_by(passwd: &str, group: &str, uid: u32, gid: u32) -> bool {
    let (uid, gid) = (uid.to_string(), gid.to_string());
    // `name:password:uid:gid:…` of the users with this primary group.
    let mut users = entries(passwd).filter(|user| user.get(3) == Some(&gid.as_str()));
    let Some(user) = users.next().filter(|user| user[2] == uid) else { return false };
    // `name:password:gid:members`.
    let mut groups = entries(group).filter(|group| group.get(2) == Some(&gid.as_str())).peekable();
    let is_own = |group: Vec<&str>| {
        let members = group.get(3).copied().unwrap_or_default();
        group[0] == user[0] && members.split(',').all(|member| member.is_empty() || member == user[0])
    };
    users.next().is_none() && groups.peek().is_some() && groups.all(is_own)
}

/// Splits each line of `/etc/passwd` or `/etc/group` into its fields.
fn entries(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_by_its_number_or_by_its_members() {
        let ann = "root:x:0:0::/root:/bin/sh\nann:x:7500:7600::/home/ann:/bin/sh\n";
        let private = |passwd: &str, group: &str| is_private_by(passwd, group, 7500, 7600);
        assert!(private(ann, "root:x:0:\nann:x:7600:\n"));
        assert!(private(ann, "ann:x:7600:ann\n"));
        assert!(!private(ann, ""), "nothing is known of the group");
        assert!(!private(ann, "ann:x:7600:bob\n"));
        assert!(!private(ann, "ann:x:7600:\nstaff:x:7600:bob\n"));
        assert!(!private(ann, "staff:x:7600:\n"));
        assert!(!private(&format!("{ann}bob:x:7501:7600::/home/bob:/bin/sh\n"), "ann:x:7600:\n"));
        assert!(!private("", "ann:x:7600:\n"));
        assert!(!private("ann:x:7500:100::/home/ann:/bin/sh\n", "ann:x:7600:\n"), "not the primary group");
        let none = |_: &str| String::new();
        assert!(is_private(7500, 7500, none) && !is_private(7500, 7600, none) && !is_private(0, 0, none));
    }
}
