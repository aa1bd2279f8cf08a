//! Why something is not on the fast path: a code for programs, and a sentence for people.
//!
//! A code says what kind of cause it is, and never changes. A sentence names the thing and the command that helps, and may
//! change with every version.

use std::{fmt, ops::Deref};

/// Defines [`Code`], with names and meanings in one place.
macro_rules! codes {
    ($($variant:ident $name:literal $meaning:literal,)*) => {
        /// A kind of cause.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $meaning] $variant,)*
        }

        impl Code {
            /// All of them, in the order of the reference page.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// Its name in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// One line for people.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$variant => $meaning,)* }
            }
        }
    };
}

codes! {
    PolicyRule "policy_rule" "a policy routing rule (`ip rule`) exists",
    PolicyRuleMissing "policy_rule_missing" "one of the usual policy routing rules is missing",
    IpsecPolicy "ipsec_policy" "an IPsec policy exists, or the default policy blocks",
    FirewallRule "firewall_rule" "a firewall rule may affect the packets",
    FirewallChain "firewall_chain" "nftables chains at ingress or egress of devices have rules",
    FirewallChecking "firewall_checking" "Millrace is still checking the firewall rules",
    FirewallTooLarge "firewall_too_large" "the firewall rules have too many groups of devices or addresses to be checked",
    Nat "nat" "NAT or conntrack must see all packets",
    BpfNetfilter "bpf_netfilter" "a BPF program is attached to a netfilter hook",
    Ipvs "ipvs" "IPVS has virtual services",
    Redirects "accepts_redirects" "a device accepts ICMP redirects",
    LearnedMtu "learned_mtu" "learned path MTUs apply to forwarded packets",
    DefaultTable "default_table" "the routing table `default` holds routes",
    NotReadYet "not_read_yet" "the namespace has not been read yet",
    Unreadable "unreadable" "part of Linux's state could not be read",
    NoNumber "no_number" "there are too many routers or interfaces",
    NoInterface "no_interface" "no interface of the namespace is on a port",
    NoFastInterface "no_fast_interface" "none of the router's interfaces is on the fast path",
    PortNotTrusted "port_not_trusted" "the port of the interface is not trusted",
    DeviceDown "device_down" "the device, or one below it, is down",
    Enslaved "enslaved" "the device belongs to a bridge, bond or VRF",
    Qdisc "qdisc" "the qdisc may delay, mark or drop packets",
    TcFilter "tc_filter" "the device has tc filters",
    Tcx "tcx_program" "the device has tcx programs",
    Xdp "xdp_program" "the device runs another XDP program",
    PriorityMap "egress_qos_map" "the VLAN device maps priorities to VLAN priority bits",
    UnknownAddress "unknown_address" "the device has an address with unknown attributes",
    DeviceKind "device_kind" "the device is of a kind that cannot be accelerated",
    MacvlanMode "macvlan_mode" "the macvlan or macvtap is in a mode that cannot be accelerated",
    Taken "packets_taken" "another device takes the packets first",
    NamespaceBetween "namespace_between" "the device sits on a device in a third namespace",
    NoMac "no_mac" "the device has no MAC address of its own",
    SameAddress "same_address" "another interface has the same port, VLAN and MAC address",
    ForwardingOff "forwarding_off" "forwarding is off, so Linux does not forward either",
    Ipv6Disabled "ipv6_disabled" "IPv6 is disabled on the device",
    Setting "setting" "the device has a setting enabled that the fast path does not follow",
    RoutesPending "routes_pending" "the fast path does not have all routes of the router yet",
    DeviceMissing "device_missing" "the port's device does not exist",
    PortDown "port_down" "the port is down",
    NotAttached "not_attached" "the program is not attached to the port",
    VlanTagsHidden "vlan_tags_hidden" "VLAN tags do not arrive within the packet",
    LargeReceive "large_receive" "received packets are merged into larger ones",
    PartialChecksums "partial_checksums" "packets arrive with incomplete checksums",
    CannotTransmit "cannot_transmit" "packets that are redirected to the port would be lost",
    PortUnchecked "port_unchecked" "the port could not be checked or set up",
    GenericMode "generic_mode" "the port is in generic mode, which is slow",
    MayRefuse "driver_may_refuse" "the driver may refuse the program when it is attached",
    NotConfirmed "not_confirmed" "the daemon did not confirm the tables in time",
    NoTrustedPort "no_trusted_port" "no port is trusted",
    Standalone "standalone" "no controller is connected, and the fail mode is `standalone`",
    RulesNotAttached "rules_not_attached" "flow rules could not be attached",
    RulesPending "rules_pending" "flow rules are being attached",
    SenderCore "no_interrupt" "the queue has neither an interrupt nor a NAPI thread",
    ThreadUnseen "thread_unseen" "the NAPI thread of the queue was not found",
    Namesakes "namesakes" "threads of several devices have the same names",
    NapiUnmatched "napi_unmatched" "the driver does not report which NAPI instance polls the queue",
    InterruptUnknown "interrupt_unknown" "the queue's interrupt is not known",
    MoveRefused "move_refused" "the kernel refused to move the queue",
    MovedByOthers "moved_by_others" "another program also moves the queue",
    SettingsUnsaved "settings_unsaved" "the original settings of the queue cannot be saved",
    InterruptManaged "interrupt_managed" "the kernel alone places the interrupt",
    PathPlace "path_place" "the port or router of the path does not exist",
    TooNew "too_new" "Linux has not seen enough packets of the connection yet",
    NotEstablished "not_established" "the TCP connection is not established",
    NoConsent "no_consent" "`established` in the configuration leaves such connections to Linux",
    SpecialConnection "special_connection" "the connection has a property that Linux must act on",
    OnlyAnswers "only_answers" "only packets of one direction were seen",
    Untranslated "untranslated" "the connection was translated, and no NAT chain is left",
    Busy "busy" "checking rules has taken too long in the last second",
    Waiting "waiting" "Linux has not been asked again since a change",
    UnknownConnection "unknown_connection" "Linux does not know the connection",
    Unwatched "unwatched" "Linux does not report the end of the connection",
    Counted "counted" "Linux counts the packets of connections",
    Full "full" "there is no room for another fast connection",
    ShortTimeout "short_timeout" "Linux's timeout of such connections is short",
    InFlowTable "in_flow_table" "the connection is in a flow table of Linux",
}

/// A cause, as a code and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    pub code: Code,
    pub text: String,
}

impl Code {
    /// A cause of this kind.
    pub fn cause(self, text: impl Into<String>) -> Cause {
        Cause { code: self, text: text.into() }
    }

    /// Does Linux not forward such packets either, so that nothing is slower than without Millrace?
    pub fn is_idle(self) -> bool {
        use Code::{DeviceDown, DeviceMissing, ForwardingOff, Ipv6Disabled, NoInterface, PortDown};
        matches!(self, ForwardingOff | Ipv6Disabled | NoInterface | DeviceDown | DeviceMissing | PortDown)
    }
}

impl Cause {
    /// The same cause with another sentence.
    pub fn map(&self, text: impl FnOnce(&str) -> String) -> Cause {
        Cause { code: self.code, text: text(&self.text) }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Deref for Cause {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq<&str> for Cause {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

impl PartialEq<String> for Cause {
    fn eq(&self, other: &String) -> bool {
        self.text == *other
    }
}

/// The sentences of causes, as one.
pub fn joined(causes: &[Cause]) -> String {
    causes.iter().map(|cause| cause.text.as_str()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_words_of_their_own() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            let name = code.name();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
            assert!(!code.meaning().is_empty() && !code.meaning().ends_with('.'), "{name}");
        }
    }
}
