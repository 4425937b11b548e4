package commands_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// hostileTexts are what somebody types who wants more than a value to be a value.
func hostileTexts() []string {
	return []string{
		`'`, `"`, `\`, `''`, `\'`, `'; drop table victim; --`, `"; drop table victim; --`, `\'; drop table victim; --`,
		`')); drop table victim; --`, `$$; drop table victim; $$`, `$body$; drop table victim; --`, `x' or '1'='1`, `outbox where 1=1; delete from victim`,
		"x\x00y", "a\nb", "a\r\nb\tc", "\x1b[2J\x1b]0;title\x07", "\u009b2J", "\u202egpj.exe", "\u200b",
		`%`, `_`, `%%%s%d`, `{}`, `{a,b}`, `{"a"}`, `[1,2]`, `null`, `NULL`, `-1`, `--`, `=cmd|'/c calc'!A0`,
		"\uff07; drop table victim; --", "\u02bc; drop table victim; --", "ｄｒｏｐ", "\xff\xfe", "\xbf\x27; drop table victim; --",
		`$1`, `@ids`, `:victim`, `{schema}`, `/*filter*/`, `:"schema"`, `${HOME}`, strings.Repeat("x", 10_000), strings.Repeat(`'"`, 5_000),
	}
}

// hostileSchema is the raw name of a schema that exists, with all that could be taken for something
// else in SQL that is put together.
const hostileSchema = `My-"Out""box"'; drop table victim;--@ids{schema}/*filter*/$1\`

// hostile is a database in which everything that PostgreSQL has, and our tables, stand once more in a
// schema that comes first in everybody's search path. Whatever is taken from there says so.
type hostile struct {
	url  string
	conn *pgx.Conn // with a search path of its own
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	ctx := context.Background()
	base := outboxtest.Empty(t)
	h := &hostile{url: base}
	config, err := pgx.ParseConfig(base)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = "pg_catalog, pg_temp"
	if h.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.conn.Close(ctx) })
	for _, sql := range []string{shadowSQL, `alter database ` + pgx.Identifier{config.Database}.Sanitize() + ` set search_path = evil, pg_catalog, public`} {
		if _, err := h.conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	if n := value[int](t, h.conn, `select count(*) from pg_proc where pronamespace = 'evil'::regnamespace`); n < 3000 {
		t.Fatalf("only %d functions are shadowed", n)
	}
	return h
}

// shadowSQL makes the schema evil. A sequence counts calls: it does so also in a transaction that is
// rolled back. What cannot be shadowed is left out.
const shadowSQL = `
create table public.victim (id int);
insert into public.victim values (1);
create schema evil;
create sequence evil.called;
create function evil.trap(what pg_catalog.text) returns pg_catalog.bool language plpgsql as $trap$
begin
  perform pg_catalog.nextval('evil.called');
  raise exception 'SHADOW % WAS USED', what;
end $trap$;
create function evil.bump(n pg_catalog.int8) returns pg_catalog.int8 language plpgsql as $trap$
begin
  perform evil.trap('count');
end $trap$;
create aggregate evil.count(*) (sfunc = evil.bump, stype = pg_catalog.int8);
do $$
declare
  shadow record;
begin
  for shadow in select format('create function evil.%I(%s) returns %s%s language plpgsql as $trap$ begin perform evil.trap(%L); end $trap$',
                         p.proname, oidvectortypes(p.proargtypes), case when p.proretset then 'setof ' else '' end,
                         format_type(p.prorettype, null), p.proname) as sql
             from pg_proc p
            where p.pronamespace = 'pg_catalog'::regnamespace
           union all
           select format('create function evil.%I(%s) returns %s language plpgsql as $trap$ begin perform evil.trap(%L); end $trap$',
                         'operator_' || o.oid, concat_ws(', ', nullif(o.oprleft, 0)::regtype, o.oprright::regtype), o.oprresult::regtype, o.oprname)
             from pg_operator o
           union all
           select format('create operator evil.%s (%s, function = evil.%I)', o.oprname,
                         concat_ws(', ', 'leftarg = ' || nullif(o.oprleft, 0)::regtype, 'rightarg = ' || o.oprright::regtype), 'operator_' || o.oid)
             from pg_operator o
           union all
           select format('create table evil.%I ()', c.relname)
             from pg_class c
            where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind in ('r', 'v')
           union all
           select format('create domain evil.%I as pg_catalog.%1$I check (evil.trap(%1$L))', t.typname)
             from pg_type t
            where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typcategory <> 'A'
  loop
    begin
      execute shadow.sql;
    exception when others then null; -- of a pseudo-type, or an operator whose function PostgreSQL refuses
    end;
  end loop;
end $$;`

// untouched fails when something of the shadows was used, or something was injected.
func (h *hostile) untouched(t *testing.T, after string) {
	t.Helper()
	if value[bool](t, h.conn, `select is_called from evil.called`) {
		t.Errorf("after %s: something of the search path was used", after)
		execOn(t, h.conn, `select setval('evil.called', 1, false)`)
	}
	if n := value[int](t, h.conn, `select count(*) from public.victim`); n != 1 {
		t.Errorf("after %s: the victim has %d rows", after, n)
	}
}

func connectTo(t *testing.T, base string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execOn(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value is the one that sql selects.
func value[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// with adds a parameter to a database URL.
func with(t *testing.T, base, name, text string) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, text)
	u.RawQuery = q.Encode()
	return u.String()
}
