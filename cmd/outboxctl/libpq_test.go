package main_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestLibpqsHabitsAreKept says where the server is in every way that psql understands, and some that
// other programs do.
func TestLibpqsHabitsAreKept(t *testing.T) {
	t.Parallel()
	const password = `p'w \ d:x`
	c := cluster(t, outboxtest.Options{Password: password, Settings: []string{"unix_socket_directories = '.'"}})
	u, err := url.Parse(c.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	host, port, socket := u.Hostname(), u.Port(), filepath.Join(filepath.Dir(c.LogFile()), "data")
	home := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		file := filepath.Join(home, name)
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const escaped = `p'w \\ d\:x`
	passfile := write(".pgpass", "# ours\n*:*:*:nobody:x\n"+host+":"+port+":postgres:postgres:"+escaped+"\nlocalhost:"+port+":*:*:"+escaped+"\n", 0o600)
	loose := write("loose", "*:*:*:*:"+escaped+"\n", 0o640)
	service := write("services.conf", "[shop]\nhost="+host+"\nport="+port+"\nuser=postgres\ndbname=postgres\npassword="+password+"\nkeepalives=1\npool_max_conns=2\n", 0o600)
	write("empty", "", 0o600)
	quoted := `'p\'w \\ d:x'`
	where := []string{"PGHOST=" + host, "PGPORT=" + port, "PGUSER=postgres", "PGDATABASE=postgres"}
	empty := "PGPASSFILE=" + filepath.Join(home, "empty")
	tests := []struct {
		name string
		env  []string
		dsn  string
		code int
		says string
	}{
		{"variables", append(where, "PGPASSWORD="+password, empty), "", 0, ""},
		{"password file", where, "", 0, ""},
		{"password file by name", append(where, "PGPASSFILE="+passfile), "", 0, ""},
		{"password file in the URL", []string{empty}, "postgres://postgres@" + u.Host + "/postgres?passfile=" + url.QueryEscape(passfile), 0, ""},
		{"password file that others may read", append(where, "PGPASSFILE="+loose), "", 4, "outboxctl: warning: " + loose + " is not used, since others may read it: chmod 600 it\n"},
		{"the same, in the URL", []string{empty}, "postgres://postgres@" + u.Host + "/postgres?passfile=" + url.QueryEscape(loose), 4, loose + " is not used"},
		{"the same, with a password from elsewhere", append(where, "PGPASSFILE="+loose, "PGPASSWORD="+password), "", 0, ""},
		{"service", []string{"PGSERVICEFILE=" + service, "PGSERVICE=shop", empty}, "", 0, ""},
		{"service in the DSN", []string{"PGSERVICEFILE=" + service, empty}, "service=shop application_name=billing", 0, ""},
		{"service that is not there", []string{"PGSERVICEFILE=" + service}, "service=nowhere", 2, "outboxctl: DATABASE_URL: there is no such service in the service file\n"},
		{"words", []string{empty}, fmt.Sprintf("host = %s port = %s user=postgres dbname=postgres password=%s", host, port, quoted), 0, ""},
		{"socket in words", nil, fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres", socket, port), 0, ""},
		{"socket in a URL", nil, fmt.Sprintf("postgres:///postgres?host=%s&port=%s&user=postgres&sslmode=require", url.QueryEscape(socket), port), 0, ""},
		{"URL over variables", append(where, "PGPORT=1"), "postgres://postgres@" + u.Host + "/postgres", 0, ""},
		{"JDBC", []string{empty}, "jdbc:postgresql://" + u.Host + "/postgres?user=postgres&password=" + url.PathEscape(password), 0, ""},
		{"SQLAlchemy", nil, "postgresql+asyncpg://postgres@" + u.Host + "/postgres", 0, ""},
		{"address beside a name", append(where, "PGHOSTADDR=127.0.0.1"), "", 2, "outboxctl: the PG* variables: hostaddr cannot be used here: give the address as host\n"},
		{"revocation list", append(where, "PGSSLCRL=/etc/crl.pem"), "", 2, "the PG* variables: sslcrl cannot be used here"},
	}
	for _, tt := range tests {
		env := append([]string{"HOME=" + home, "DATABASE_URL=" + tt.dsn}, tt.env...)
		p := startWith(t, env, "stats")
		if code := p.wait(patience); code != tt.code || !strings.Contains(p.err.String(), tt.says) || tt.says == "" && p.err.String() != "" {
			t.Errorf("%s: exit code %d, says %q; want %d, %q", tt.name, code, p.err.String(), tt.code, tt.says)
		}
	}
}

// TestParametersOfOtherProgramsAreIgnoredAloud shares a database URL with programs of all kinds.
func TestParametersOfOtherProgramsAreIgnoredAloud(t *testing.T) {
	t.Parallel()
	base, _ := database(t)
	ignored := func(name, advice string) string {
		return fmt.Sprintf("outboxctl: warning: DATABASE_URL: the parameter %q is not PostgreSQL's, it is ignored%s\n", name, advice)
	}
	impossible := func(words string) string { return "outboxctl: DATABASE_URL: " + words + "\n" }
	tests := []struct {
		params string
		code   int
		says   string
	}{
		{"pgbouncer=true", 0, ignored("pgbouncer", "")},
		{"schema=S3cr3t", 0, ignored("schema", "; --schema names the outbox's schema")},
		{"connection_limit=5&pool_timeout=20", 0, ignored("connection_limit", "; pool_max_conns is the number of connections") + ignored("pool_timeout", "")},
		{"sslaccept=strict", 0, ignored("sslaccept", "; sslmode=verify-full checks certificates")},
		{"ApplicationName=x&currentSchema=x", 0, ignored("ApplicationName", "") + ignored("currentSchema", "; --schema names the outbox's schema")},
		{"flavour=S3cr3t", 0, `outboxctl: warning: DATABASE_URL: PostgreSQL does not know the parameter "flavour", it is ignored` + "\n"},
		{"keepalives=1&keepalives_idle=10&keepalives_count=3&tcp_user_timeout=1000&krbsrvname=postgres", 0, ""},
		{"gssencmode=disable&sslcompression=0&channel_binding=prefer&load_balance_hosts=random&fallback_application_name=x", 0, ""},
		{"target_session_attrs=read-write&sslnegotiation=postgres&require_auth=none&sslcertmode=disable", 0, ""},
		{"options=-csearch_path%3Devil%20-cwork_mem%3D1MB&my.setting=1&connect_timeout=3", 0, ""},
		{"pool_max_conns=1&pool_min_conns=1&default_query_exec_mode=cache_describe", 0, ""},
		{"options=-cflavour%3Dvanilla", 4, `refuses: unrecognized configuration parameter "flavour"` + "\n"},
		{"gssencmode=require", 2, impossible("gssencmode=require cannot be used here: outboxctl encrypts with TLS, see sslmode")},
		{"sslmod=verify-full", 2, impossible(`there is no parameter "sslmod"`)},
		{"sslcrl=/etc/crl.pem", 2, impossible("sslcrl cannot be used here: outboxctl does not check certificates against a revocation list")},
		{"ssl=yes", 2, impossible("ssl cannot be used here: write sslmode=require or sslmode=disable")},
		{"hostaddr=127.0.0.1", 2, impossible("hostaddr cannot be used here: give the address as host")},
		{"ssl_min_protocol_version=TLSv7", 2, impossible("ssl_min_protocol_version must be TLSv1.2 or TLSv1.3")},
		{"target_session_attrs=best", 2, impossible("target_session_attrs is not one of any, read-write, read-only, primary, standby and prefer-standby")},
		{"sslmode=no-verify", 2, impossible("sslmode is not one of disable, allow, prefer, require, verify-ca and verify-full")},
		{"channel_binding=require", 4, "channel binding required but server did not authenticate using channel binding\n"},
	}
	for _, tt := range tests {
		code, _, words := run(t, withSetting(base, tt.params), "stats")
		words = strings.ReplaceAll(words, "  want postgres://user:password@host:5432/database or libpq's key=value form\n", "")
		if code != tt.code || !strings.HasSuffix(words, tt.says) || strings.Count(words, "\n") != strings.Count(tt.says, "\n") || strings.Contains(words, "S3cr3t") {
			t.Errorf("%s: exit code %d, says %s\nwant %d, %s", tt.params, code, words, tt.code, tt.says)
		}
	}
}
