package commands

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// What pgx does not know it hands to the server as a setting of the session. So parameters need a
// look: those of libpq that pgx lacks, those of other programs that share the URL, and settings that
// we have a say in.
var (
	// settled is set by every transaction of ours, or below; and a pooler refuses most of it.
	settled = []string{
		"search_path", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
		"client_encoding", "datestyle", "intervalstyle", "bytea_output",
		"default_transaction_isolation", "default_transaction_read_only", "default_transaction_deferrable",
	}

	// needless is libpq's for what goes well without: Go keeps a connection alive by itself, an
	// exchange has its time, and passwords need no GSSAPI.
	needless = []string{
		"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
		"gsslib", "gssdelegation", "sslcompression", "load_balance_hosts",
	}

	// impossible is what somebody relies on, and cannot here: by parameter, what to do instead.
	impossible = map[string]string{
		"hostaddr":    "give the address as host",
		"requirepeer": "outboxctl does not check who runs the server",
		"sslcrl":      "outboxctl does not check certificates against a revocation list",
		"sslcrldir":   "outboxctl does not check certificates against a revocation list",
		"ssl":         "write sslmode=require or sslmode=disable",
	}

	// foreign is other programs', by name in lower case, with what to use instead.
	foreign = map[string]string{
		"schema": schemaIs, "currentschema": schemaIs,
		"connection_limit": sizeIs, "pool": sizeIs, "pool_size": sizeIs, "max_connections": sizeIs,
		"sslaccept": tlsIs, "sslidentity": tlsIs, "sslfactory": tlsIs, "uselibpqcompat": "",
		"pgbouncer": "", "pool_timeout": "", "pool_recycle": "", "socket_timeout": "", "sockettimeout": "", "logintimeout": "",
		"statement_cache_size": "", "prepared_statements": "", "preparethreshold": "", "binary_parameters": "",
		"max_idle_connection_lifetime": "", "max_connection_lifetime": "", "single_use_connections": "",
		"targetservertype": "", "tcpkeepalive": "", "applicationname": "", "rewritebatchedinserts": "", "stringtype": "",
		"encoding": "", "charset": "", "adapter": "", "reconnect": "", "serverversion": "", "conn_max_age": "",
		"replication": "", "supa": "", "workaround": "",
	}
)

const (
	schemaIs = "; --schema names the outbox's schema"
	sizeIs   = "; pool_max_conns is the number of connections"
	tlsIs    = "; sslmode=verify-full checks certificates"
)

// fromEnvironment is where libpq finds parameters that pgx does not look for.
var fromEnvironment = map[string]string{
	"PGHOSTADDR": "hostaddr", "PGREQUIREPEER": "requirepeer", "PGSSLCRL": "sslcrl", "PGSSLCRLDIR": "sslcrldir",
	"PGGSSENCMODE": "gssencmode", "PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version", "PGSSLMAXPROTOCOLVERSION": "ssl_max_protocol_version",
}

// fitParameters leaves in c what the server is to know.
func (a *app) fitParameters(c *pgx.ConnConfig, d dsn) error {
	params := c.RuntimeParams
	for _, variable := range slices.Sorted(maps.Keys(fromEnvironment)) {
		// Not a.Getenv: pgx reads all of libpq's variables so.
		if value, name := os.Getenv(variable), fromEnvironment[variable]; value != "" && params[name] == "" {
			params[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		keep, err := a.fitParameter(c, d, name, params[name])
		if err != nil {
			return usage(fmt.Errorf("%s: %w", d.from, err), "")
		}
		if !keep {
			delete(params, name)
		}
	}
	if params["application_name"] == "" {
		params["application_name"] = "outboxctl"
	}
	// Whatever the database's encoding or the role's habits: pgx reads these, and only these.
	params["client_encoding"], params["datestyle"] = "UTF8", "ISO"
	return nil
}

// fitParameter reports whether the server is to know the parameter. It never shows the value, which
// may be a secret.
func (a *app) fitParameter(c *pgx.ConnConfig, d dsn, name, value string) (keep bool, err error) {
	lower := strings.ToLower(name)
	advice, isForeign := foreign[lower]
	instead, isImpossible := impossible[lower]
	switch {
	case isImpossible:
		return false, fmt.Errorf("%s cannot be used here: %s", name, instead)
	case lower == "gssencmode":
		if value == "require" {
			return false, fmt.Errorf("gssencmode=require cannot be used here: outboxctl encrypts with TLS, see sslmode")
		}
	case lower == "ssl_min_protocol_version", lower == "ssl_max_protocol_version":
		return false, limitTLS(c, lower, value)
	case lower == "fallback_application_name":
		if c.RuntimeParams["application_name"] == "" {
			c.RuntimeParams["application_name"] = value
		}
	case isForeign:
		a.warnOnce("%s: the parameter %q is not PostgreSQL's, it is ignored%s", d.from, name, advice)
	case slices.Contains(settled, lower), slices.Contains(needless, lower):
	case strings.HasPrefix(lower, "ssl"): // a slip that would cost the protection it asks for
		return false, fmt.Errorf("there is no parameter %q", name)
	default:
		return true, nil
	}
	return false, nil
}

var tlsVersions = map[string]uint16{
	"TLSv1": tls.VersionTLS10, "TLSv1.1": tls.VersionTLS11, "TLSv1.2": tls.VersionTLS12, "TLSv1.3": tls.VersionTLS13,
}

// limitTLS bounds the versions of TLS, the least of which is 1.2 anyway.
func limitTLS(c *pgx.ConnConfig, name, value string) error {
	version, ok := tlsVersions[value]
	if !ok || name == "ssl_max_protocol_version" && version < tls.VersionTLS12 {
		return fmt.Errorf("%s must be TLSv1.2 or TLSv1.3", name)
	}
	all := []*tls.Config{c.TLSConfig}
	for _, other := range c.Fallbacks {
		all = append(all, other.TLSConfig)
	}
	for _, t := range all {
		switch {
		case t == nil:
		case name == "ssl_min_protocol_version":
			t.MinVersion = max(version, tls.VersionTLS12)
		default:
			t.MaxVersion = version
		}
	}
	return nil
}

// passfile finds the parameter in either form of a connection string.
var passfile = regexp.MustCompile(`passfile\s*=\s*'?([^\s'&]+)`)

// loosePassfile returns the password file if others may read it.
func loosePassfile(text string) string {
	file := os.Getenv("PGPASSFILE")
	if home, err := os.UserHomeDir(); file == "" && err == nil {
		file = filepath.Join(home, ".pgpass")
	}
	if m := passfile.FindStringSubmatch(text); m != nil {
		file = m[1]
		if plain, err := url.QueryUnescape(file); err == nil {
			file = plain
		}
	}
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 == 0 {
		return ""
	}
	return file
}

// withParameter adds a parameter to a connection string in its own form.
func withParameter(text, name, value string) string {
	switch {
	case !scheme.MatchString(text):
		return text + " " + name + "=" + value
	case strings.HasSuffix(text, "?"), strings.HasSuffix(text, "&"):
		return text + name + "=" + value
	case strings.Contains(text, "?"):
		return text + "&" + name + "=" + value
	}
	return text + "?" + name + "=" + value
}
