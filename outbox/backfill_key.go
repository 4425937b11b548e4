package outbox

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// backfillSpace is the namespace of the keys of backfilled events: the version 5 UUID of
// https://github.com/outboxctl/outboxctl/backfill among URLs. It never changes.
var backfillSpace = uuid.MustParse("bdff1a87-6edd-5725-b097-d5584e86b124")

// BackfillKey is the idempotency key of the event that a row of a source stands for: the version 5
// UUID (RFC 9562, 5.5) of what makes it one. The parts are joined by NUL, which no text of
// PostgreSQL has, so that no two rows share a name. A row's key is the text of each key column.
func BackfillKey(source, eventType string, version int, key ...string) uuid.UUID {
	parts := append([]string{source, eventType, strconv.Itoa(version)}, key...)
	return uuid.NewSHA1(backfillSpace, []byte(strings.Join(parts, "\x00")))
}

// A key function gathers the name in m, has its first sixteen bytes of SHA-1 put there, and marks them
// as a version 5 UUID. {words} and {sha1} are how it comes to that hash.
const keyFunctionSQL = `create or replace function {schema}.outbox_backfill_key(
  source         text,             -- schema.table, as outboxctl backfill names it
  event_type     text,
  schema_version int,
  variadic key   text[]            -- the row's key: the text of each key column
) returns uuid
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $body$
declare
  m bytea := '\x{namespace}'::bytea || convert_to(source, 'UTF8') || '\x00'::bytea || convert_to(event_type, 'UTF8')
             || '\x00'::bytea || convert_to(schema_version::text, 'UTF8');
  part text;
{words}begin
  foreach part in array key loop
    if part is null then
      return null;
    end if;
    m := m || '\x00'::bytea || convert_to(part, 'UTF8');
  end loop;
{sha1}  m := set_byte(set_byte(m, 6, (get_byte(m, 6) & 15) | 80), 8, (get_byte(m, 8) & 63) | 128);
  return encode(m, 'hex')::uuid;
end
$body$;
`

// SHA-1 (FIPS 180-4, 6.1) in SQL alone: PostgreSQL has it in extensions, which are not everywhere. All
// words are bigint, cut to 32 bits.
const (
	sha1WordsSQL = `  mask constant bigint := 4294967295;
  n int;
  w bigint[];
  h bigint[] := array[1732584193, 4023233417, 2562383102, 271733878, 3285377520];
  a bigint; b bigint; c bigint; d bigint; e bigint; t bigint;
`
	sha1SQL = `  n := length(m);
  m := m || '\x80'::bytea || decode(repeat('00', (119 - n % 64) % 64), 'hex') || int8send(n::bigint * 8);
  for block in 0 .. length(m) / 64 - 1 loop
    for i in 0 .. 15 loop
      n := block * 64 + i * 4;
      w[i] := (get_byte(m, n)::bigint << 24) + (get_byte(m, n + 1) << 16) + (get_byte(m, n + 2) << 8) + get_byte(m, n + 3);
    end loop;
    a := h[1]; b := h[2]; c := h[3]; d := h[4]; e := h[5];
    for i in 0 .. 79 loop
      if i > 15 then
        t := w[i - 3] # w[i - 8] # w[i - 14] # w[i - 16];
        w[i] := ((t << 1) | (t >> 31)) & mask;
      end if;
      t := w[i] + e + ((a << 5) | (a >> 27)) + case i / 20
             when 0 then (d # (b & (c # d))) + 1518500249
             when 1 then (b # c # d) + 1859775393
             when 2 then ((b & c) | (d & (b | c))) + 2400959708
             else (b # c # d) + 3395469782
           end;
      e := d; d := c; c := ((b << 30) | (b >> 2)) & mask; b := a; a := t & mask;
    end loop;
    h := array[(h[1] + a) & mask, (h[2] + b) & mask, (h[3] + c) & mask, (h[4] + d) & mask, (h[5] + e) & mask];
  end loop;
  m := substr(int8send(h[1]), 5) || substr(int8send(h[2]), 5) || substr(int8send(h[3]), 5) || substr(int8send(h[4]), 5);
`
)

// sha1CryptoSQL is the same by pgcrypto.
const sha1CryptoSQL = `  m := substr({pgcrypto}.digest(m, 'sha1'), 1, 16);
`

// KeyFunction is the SQL of a function outbox_backfill_key in the schema of that raw name, which
// computes [BackfillKey]. With the raw name of the schema of pgcrypto it uses that; else it needs no
// extension.
func KeyFunction(schema, pgcrypto string) string {
	words, hash := sha1WordsSQL, sha1SQL
	if pgcrypto != "" {
		words, hash = "", sha1CryptoSQL
	}
	text := strings.NewReplacer("{words}", words, "{sha1}", hash).Replace(keyFunctionSQL)
	body := "$body$"
	for strings.Contains(pgcrypto, body) { // which stands inside of these quotes
		body = "$_" + body[1:]
	}
	return strings.NewReplacer(
		"$body$", body,
		"{schema}", pgx.Identifier{schema}.Sanitize(),
		"{pgcrypto}", pgx.Identifier{pgcrypto}.Sanitize(),
		"{namespace}", strings.ReplaceAll(backfillSpace.String(), "-", ""),
	).Replace(text)
}
