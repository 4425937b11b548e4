package outbox

import (
	"encoding/json"
	"strings"
	"time"
)

// Rooms says how many events a claim may take of each tenant.
type Rooms struct {
	Each int            // of a tenant that is not in Of; ≥ 1
	Of   map[string]int // 0 leaves the tenant out
}

// and is the smaller room of each tenant.
func (r *Rooms) and(other *Rooms) *Rooms {
	if r == nil || other == nil {
		if r == nil {
			return other
		}
		return r
	}
	both := &Rooms{Each: min(r.Each, other.Each), Of: make(map[string]int, len(r.Of)+len(other.Of))}
	for tenant := range r.Of {
		both.Of[tenant] = min(r.of(tenant), other.of(tenant))
	}
	for tenant := range other.Of {
		both.Of[tenant] = min(r.of(tenant), other.of(tenant))
	}
	return both
}

func (r *Rooms) of(tenant string) int {
	if room, ok := r.Of[tenant]; ok {
		return room
	}
	return r.Each
}

// without is r with no room for the paused tenants.
func (r *Rooms) without(paused map[string]time.Duration) *Rooms {
	if len(paused) == 0 {
		return r
	}
	none := &Rooms{Each: NoLimit, Of: make(map[string]int, len(paused))}
	for tenant := range paused {
		none.Of[tenant] = 0
	}
	return r.and(none)
}

// args are the rooms as a claim of n events is told them: by tenant in JSON, and each other's.
func (r *Rooms) args(n int) (of string, each int) {
	rooms := make(map[string]int, len(r.Of))
	for tenant, room := range r.Of {
		rooms[tenant] = min(room, n)
	}
	text, err := json.Marshal(rooms)
	if err != nil { // of strings and numbers
		panic(err)
	}
	return string(text), min(r.Each, n)
}

// full reports whether some tenant is left out: then a claim that finds nothing does not mean that
// nothing is due.
func (r *Rooms) full() bool {
	if r != nil {
		for _, room := range r.Of {
			if room == 0 {
				return true
			}
		}
	}
	return false
}

// roomSQL is how much a claim may take of a tenant. The sub-select runs once; in it a tenant's room is
// found by a binary search.
const roomSQL = `least(@want, coalesce(((select @rooms::text::jsonb) ->> v.tenant_id)::bigint, @each))`

// claimKind tells the statements of a claim apart.
type claimKind struct {
	full  bool // a walk from the start, not from the marks
	rooms bool // tenants have limits
	fresh bool // no retries
	share bool // retries have a share
}

// claimStatements are a claim's statements for one selection.
func (q *Queue) claimStatements() map[claimKind]string {
	statements := map[claimKind]string{}
	for _, full := range []bool{false, true} {
		for _, rooms := range []bool{false, true} {
			for _, kind := range []claimKind{{}, {fresh: true}, {share: true}} {
				kind.full, kind.rooms = full, rooms
				statements[kind] = q.store.sql(q.o.Only.narrow(kind.sql()))
			}
		}
	}
	return statements
}

func (k claimKind) sql() string {
	sql := claimMarkedSQL
	if k.full {
		sql = claimFullSQL
	}
	parts := map[string]string{"/*room*/": "@want", "/*chosen*/": "select id from due", "/*left*/": "0::bigint"}
	if k.rooms {
		parts["/*room*/"] = roomSQL
	}
	if k.fresh {
		parts["/*fresh*/"] = freshSQL
	}
	if k.share {
		parts["/*is retry*/"], parts["/*retry*/"], parts["/*chosen*/"], parts["/*left*/"] = isRetrySQL, retrySQL, chosenSQL, leftSQL
	}
	for _, part := range []string{"/*room*/", "/*chosen*/", "/*left*/", "/*fresh*/", "/*is retry*/", "/*retry*/"} {
		sql = strings.ReplaceAll(sql, part, parts[part])
	}
	return sql
}

// orderedStatements are the same of an ordered claim. Events beyond a tenant's room are left, those of its
// last aggregates first.
func (q *Queue) orderedStatements() map[bool]string {
	sql := q.o.OnDead.holding(q.o.Only.narrow(claimOrderedSQL))
	return map[bool]string{
		false: q.store.sql(strings.NewReplacer("/*nth*/", "", "/*roomy*/", "").Replace(sql)),
		true:  q.store.sql(strings.NewReplacer("/*nth*/", nthSQL, "/*roomy*/", roomySQL).Replace(sql)),
	}
}

const (
	nthSQL = `,
	               r.tenant_id, row_number() over (partition by r.tenant_id order by r.n, r.aggregate_type, r.aggregate_id, r.place) as nth`
	roomySQL = `
	   and m.nth <= coalesce(((select @rooms::text::jsonb) ->> m.tenant_id)::bigint, @each)`
)
