// Package outboxtest gives tests a real PostgreSQL, with the outbox's schema in it, and a webhook
// receiver that does as it is told.
//
//	func TestClaim(t *testing.T) {
//		t.Parallel()
//		db := outboxtest.DB(t) // a fresh database, migrated, dropped at cleanup
//
// The databases live on the server that OUTBOXCTL_TEST_DATABASE_URL names, with a role that may
// create databases, or else in a throw-away cluster that is started from local binaries when the
// first test asks and never outlives the test process. A test never skips: where there is no
// PostgreSQL it fails and says what to install.
package outboxtest
