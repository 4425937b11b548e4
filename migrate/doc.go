// Package migrate is the life of the outbox's schema: it creates it, brings it up to date, says
// where it stands and compares it with what it should be. It knows nothing of events.
//
// The migrations are the numbered files in sql, each with its way up and down and a head that says
// which binaries may run beside it and what it locks. The table outbox_migrations holds one row per
// migration that was applied.
//
// Everything but [Schema.Up] and [Schema.Down] only reads: it creates nothing, and works on a
// standby and for a role that may do no more than read the catalog and outbox_migrations. The package
// neither logs nor prints; it reports to its caller by values and errors.
package migrate
