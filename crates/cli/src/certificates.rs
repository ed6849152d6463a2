//! `portcullis certificates`: a private authority, and its certificates for nodes and tenants.

use crate::output::{complain, print_json, say};
use clap::{Args, Subcommand};
use portcullis_attach::tls::certificates::{
    CertificateError, Made, Validity, make_authority, make_node, make_tenant,
};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  # Once. A holder of pki/ca-key.pem can make nodes and tenants: keep it safe.
  portcullis certificates --directory pki authority
  # A node that clients dial as memory1.lan or 10.0.0.7. It needs ca.pem,
  # node-memory1.pem and node-memory1-key.pem.
  portcullis certificates --directory pki node memory1 \\
      --host memory1.lan --host 10.0.0.7
  # The clients of tenant orange. They need ca.pem, tenant-orange.pem and
  # tenant-orange-key.pem.
  portcullis certificates --directory pki tenant orange --days 30

Keys are made for their owner alone (mode 0600). Nodes and clients also
accept mode 0640 if the group is root's or one of their process's, and refuse to
start with other modes. Nothing is overwritten. There is no list of revoked
certificates: give tenants few days, and if a key was stolen, make a new
authority. Two authorities are accepted at the same time while nodes and clients
have both in their ca.pem.

Exit codes: 0 made; 2 the call was wrong; 3 the machine refused, or a file
exists already.";

const MADE_AUTHORITY: &str = "Give every node and client a copy of ca.pem. Keep ca-key.pem to yourself.";

/// Options of `portcullis certificates`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CertificatesOptions {
    /// The directory of the authority's files. It is created together with the authority.
    #[arg(long, value_name = "DIR", value_parser = crate::files::path())]
    directory: PathBuf,
    /// Print what was made as one JSON object: {"made":...,"certificate":...,"key":...,"expires":...}, in seconds of
    /// Unix time.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Make a private authority: ca.pem and ca-key.pem.
    Authority {
        /// Days of validity. No certificate outlives its authority.
        #[arg(long, value_name = "N", default_value_t = 3650)]
        days: u32,
    },
    /// Make a node's certificate: node-NAME.pem and node-NAME-key.pem.
    Node {
        /// The name in the files' names.
        name: String,
        /// The name that clients dial: a host name or an address; may be given several times.
        #[arg(long = "host", value_name = "HOST", required = true)]
        hosts: Vec<String>,
        /// Days of validity.
        #[arg(long, value_name = "N", default_value_t = 365)]
        days: u32,
    },
    /// Make a tenant's certificate: tenant-NAME.pem and tenant-NAME-key.pem.
    Tenant {
        /// The tenant for which the owner of the key acts: up to 64 printable ASCII letters.
        name: String,
        /// Days of validity.
        #[arg(long, value_name = "N", default_value_t = 365)]
        days: u32,
    },
}

/// The output of `--json`.
#[derive(Serialize)]
struct Said<'a> {
    made: &'a str,
    certificate: String,
    key: String,
    expires: u64,
}

/// Makes the certificate that the command line requests.
pub fn run(options: &CertificatesOptions) -> ExitCode {
    let now = SystemTime::now();
    match make(options, now) {
        Ok(made) => {
            print(options, &made, now);
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(format_args!("portcullis certificates: {error}"));
            let hint = matches!(&error, CertificateError::Authority(_)) && !options.directory.exists();
            if hint {
                let directory = options.directory.display();
                complain(format_args!(
                    "make the authority first: portcullis certificates --directory {directory} authority"
                ));
            }
            ExitCode::from(if matches!(error, CertificateError::Call(_)) { 2 } else { 3 })
        }
    }
}

fn make(options: &CertificatesOptions, now: SystemTime) -> Result<Made, CertificateError> {
    let directory = &options.directory;
    match &options.what {
        What::Authority { days } => make_authority(directory, Validity { now, days: *days }),
        What::Node { name, hosts, days } => make_node(directory, name, hosts, Validity { now, days: *days }),
        What::Tenant { name, days } => make_tenant(directory, name, Validity { now, days: *days }),
    }
}

fn print(options: &CertificatesOptions, made: &Made, now: SystemTime) {
    let (what, advice) = match &options.what {
        What::Authority { .. } => ("authority", MADE_AUTHORITY),
        What::Node { .. } => ("node", "The node needs both, and ca.pem."),
        What::Tenant { .. } => ("tenant", "The tenant's clients need both, and ca.pem."),
    };
    let (certificate, key) = (made.certificate.display().to_string(), made.key.display().to_string());
    if options.json {
        let expires = made.expires.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        print_json(&Said { made: what, certificate, key, expires });
        return;
    }
    let left = made.expires.duration_since(now).unwrap_or_default() + Duration::from_secs(1);
    let days = left.as_secs() / (24 * 3600);
    say(format_args!(
        "{certificate}: the certificate, valid for {days} days\n{key}: its private key\n{advice}"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: CertificatesOptions,
    }

    fn parsed(words: &str) -> Result<CertificatesOptions, clap::Error> {
        Line::try_parse_from(words.split_whitespace()).map(|line| line.options)
    }

    #[test]
    fn a_node_has_several_hosts_and_a_year() {
        let options =
            parsed("certificates --directory d node a --host x --host 10.0.0.1 --json").expect("a call");
        assert!(options.json);
        assert!(matches!(options.what, What::Node { hosts, days: 365, .. } if hosts == ["x", "10.0.0.1"]));
    }

    #[test]
    fn calls_without_what_they_need_are_wrong() {
        for line in [
            "certificates authority",
            "certificates --directory d",
            "certificates --directory d node a",
            "certificates --directory d tenant",
            "certificates --directory d tenant a --days -1",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
