use super::*;

fn me() -> User {
    User { name: "me".into(), home: "/home/me".into(), config: None }
}

fn host_spec(text: &str) -> HostSpec {
    HostSpec::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn hosts_are_read_and_dangerous_names_refused() {
    let check = |text: &str, user: Option<&str>, name: &str, port: Option<u16>| {
        let expected = HostSpec { user: user.map(str::to_owned), name: name.into(), port };
        assert_eq!(host_spec(text), expected, "{text}");
    };
    check("train@gpu-01:2222", Some("train"), "gpu-01", Some(2222));
    check("gpu-01", None, "gpu-01", None);
    check("[fe80::1]:2222", None, "fe80::1", Some(2222));
    check("me@[::1]", Some("me"), "::1", None);
    check("::1", None, "::1", None);
    for bad in [
        "-oProxyCommand=x",
        "me@-h",
        "a b",
        "h:x",
        "",
        "@h",
        "h;reboot",
        "$(x)",
        "h\n",
        "-l@h",
        "a:b:c",
        "[h",
        "[::1]x",
        "h:70000",
        "a,b",
    ] {
        assert!(HostSpec::parse(bad).is_err(), "{bad:?}");
        let host = Host { address: bad.into(), port: 22, user: None, via: None };
        assert!(matches!(SshTarget::resolve(&host, &me()), Err(TransportError::Name(..))), "{bad:?}");
    }
}

#[test]
fn the_last_at_sign_divides_user_and_host() {
    for (text, user) in [
        ("user@corp.example@10.0.0.7:2222", "user@corp.example"),
        ("CORP\\me@10.0.0.7:2222", "CORP\\me"),
        ("CORP+me@10.0.0.7:2222", "CORP+me"),
        ("jürgen@10.0.0.7:2222", "jürgen"),
    ] {
        let found = host_spec(text);
        let expected = (Some(user), "10.0.0.7", Some(2222));
        assert_eq!((found.user.as_deref(), found.name.as_str(), found.port), expected, "{text}");
    }
}

/// In front of a host, in a recipe, and in the user's SSH configuration.
#[test]
fn a_user_that_is_no_name_is_refused() {
    for bad in [
        "-oProxyCommand=x",
        "-l",
        "",
        "a b",
        "a\tb",
        "a\nb",
        "a\u{7}",
        "a;reboot",
        "$(x)",
        "`x`",
        "a|b",
        "a&b",
        "a>b",
        "a'b",
        "a\"b",
        "a,b",
        "a:b",
        "a/b",
        "a%h",
        "a{b}",
        "me\\",
        "@h",
        "a@",
        "a\u{202e}b",
    ] {
        assert!(HostSpec::parse(&format!("{bad}@h")).is_err(), "{bad:?}");
        let host = Host { address: "h".into(), port: 22, user: Some(bad.into()), via: None };
        assert!(matches!(SshTarget::resolve(&host, &me()), Err(TransportError::Name(..))), "{bad:?}");
        let config = SshConfig { user: Some(bad.into()), ..SshConfig::default() };
        assert!(
            matches!(merge_config(&host_spec("h"), Some(&config), &me()), Err(TransportError::Name(..))),
            "{bad:?}"
        );
    }
}

#[test]
fn the_configuration_completes_what_the_recipe_says() {
    let config = SshConfig::parse(
        "hostname 10.0.0.7\nuser bob\nport 2222\nidentityfile ~/.ssh/%h_%r\nidentityfile %d/.ssh/100%%\n\
         identityfile /keys/%C\nidentitiesonly yes\nuserknownhostsfile /root/.ssh/known_hosts /root/known\n\
         globalknownhostsfile /etc/ssh/ssh_known_hosts\nhostkeyalias foo\n\
         revokedhostkeys ~/.ssh/revoked /etc/%h /x/%C\n",
    );
    let target = merge_config(&host_spec("gpu"), Some(&config), &me()).expect("a target");
    assert_eq!((target.name().as_str(), target.user.as_str()), ("10.0.0.7:2222", "bob"));
    assert_eq!(target.keys, ["/home/me/.ssh/10.0.0.7_bob", "/home/me/.ssh/100%"].map(PathBuf::from));
    let known = ["/home/me/.ssh/known_hosts", "/root/known", "/etc/ssh/ssh_known_hosts"].map(PathBuf::from);
    assert_eq!(target.known_hosts, known);
    assert_eq!(target.revoked_keys, ["/home/me/.ssh/revoked", "/etc/10.0.0.7", "/x/%C"].map(PathBuf::from));
    assert!(target.is_keys_only);
    assert_eq!(target.known_as(), ("foo", 22));
    let target = merge_config(&host_spec("train@gpu:23"), Some(&config), &me()).expect("a target");
    assert_eq!((target.name().as_str(), target.user.as_str()), ("10.0.0.7:23", "train"));
}

#[test]
fn without_a_configuration_the_defaults_hold() {
    let target = merge_config(&host_spec("gpu"), None, &me()).expect("a target");
    assert_eq!((target.route().as_str(), target.known_as()), ("me@gpu:22", ("gpu", 22)));
    assert_eq!(target.keys[0], Path::new("/home/me/.ssh/id_ed25519"));
    assert_eq!(target.known_hosts[0], Path::new("/home/me/.ssh/known_hosts"));
}

#[test]
fn a_name_from_the_configuration_is_checked_as_well() {
    let config = SshConfig::parse("hostname -oProxyCommand=x\n");
    assert!(matches!(merge_config(&host_spec("gpu"), Some(&config), &me()), Err(TransportError::Name(..))));
}
