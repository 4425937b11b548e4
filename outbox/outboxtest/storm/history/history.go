// Package history is what a storm leaves behind: everything that producers, receivers, the nemesis, operators and
// PostgreSQL have seen, and nothing that a dispatcher says of itself. Package storm writes one and package check
// judges it; neither needs the other.
//
// All times are of the one machine's clock, which PostgreSQL, receivers and producers share.
package history

import "time"

// History is one run.
type History struct {
	Setup       Setup
	Writes      []Write      // of producers
	Requests    []Request    // of receivers, as they came over the wire
	Transitions []Transition // of the table's rows, in the order of N
	Faults      []Fault
	Processes   []Process
	Samples     []Sample
	Commands    []Command   // of operators
	Looks       int         // at all sessions
	Sessions    []Session   // that were idle in a transaction
	Stalls      []Stall     // of the machine
	Waits       []Wait      // for a processor
	Secrets     []Secret    // that requests were signed with; nil = they are not signed
	Rows        []Row       // of outbox and outbox_archive, at the end
	Attempts    []Attempt   // of outbox_attempts, at the end
	Audits      []Audit     // of outbox_audit joined with outbox_operations, at the end
	Operations  []Operation // of outbox_operations, at the end
	Searches    []Search    // for secret canaries, at the end

	// Began and Ended are the run; at Healed the last fault was over and nothing but healthy
	// receivers, a healthy database and live dispatchers was left. Zero Healed is a run that never got there.
	Began, Healed, Ended time.Time
}

// Setup is what a run was told, as far as a judge needs it.
type Setup struct {
	Seed         uint64
	Control      bool          // no fault is injected, no receiver fails: nothing may come twice
	Lease        time.Duration // these three for all destinations
	PollInterval time.Duration
	Grace        time.Duration
	Dispatchers  int // processes that serve the destinations, each all of them
	Destinations []Destination
}

// Destination is one, as configured.
type Destination struct {
	Name           string // "" = the default one
	Ordered        bool
	Hold           bool // on_dead: hold
	RequestTimeout time.Duration
	Parallel       int // per process
	BatchSize      int // per process
	MaxAttempts    int
	Base, Cap      time.Duration // of the backoff
	Jitter         float64
	Rate           float64       // events/s per process; 0 = no limit
	TenantParallel int           // per process; 0 = no limit
	TenantRate     float64       // events/s of each tenant per process; 0 = no limit
	Breaker        int           // consecutive failures; 0 = none
	Cooldown       time.Duration // of the breaker
}

// Write is one event of one producer's transaction.
type Write struct {
	Key       string // idempotency key
	ID        int64  // of the row
	Tx        int64  // the same for events of one transaction
	Tenant    string
	Type, Agg string    // aggregate_type, aggregate_id
	Event     string    // event_type
	Dest      string    // destination
	To        []string  `json:",omitempty"` // where its event must come to when Dest is "", by the routes; nil = to Dest
	Payload   string    // SHA-256 in hex of the payload as PostgreSQL prints it
	Size      int       // of the payload in bytes
	Due       time.Time // available_at
	Written   time.Time // the insert had returned
	Asked     time.Time // before commit or rollback was sent
	Known     time.Time // its answer was there; zero = never
	Fate      Fate
}

// Fate is how a producer's transaction ended.
type Fate string

// Fates. Of an unknown one the connection broke at the commit: the dump says what it was.
const (
	Committed  Fate = "committed"
	RolledBack Fate = "rolled_back"
	Unknown    Fate = "unknown"
)

// Request is one on the wire.
type Request struct {
	N         int64         // in the order in which they came in whole
	ID        string        // sent back as X-Request-Id, so that a row's receipt names its request; "" = no headers were sent
	Dest      string        // the destination whose URL it is
	Began     time.Time     // headers had come in
	At        time.Time     // it had come in whole; zero = its body broke off
	Done      time.Time     // the answer was out, or given up
	Key       string        // X-Idempotency-Key
	WebhookID string        // webhook-id
	Attempt   int           // X-Outbox-Attempt
	Sequence  int64         // from the envelope
	Body      string        // SHA-256 in hex of its bytes
	Payload   string        // SHA-256 in hex of the payload's bytes inside the envelope
	Signed    []string      // names of the secrets that a valid webhook-signature was made with
	Hmac      string        // name of the secret of a valid X-Signature; "" = none was valid
	Status    int           // answered; 0 = no complete headers went out
	Wait      time.Duration // Retry-After that was answered, in seconds or as a date; 0 = none
	Behaviour string        // what the receiver was told to do: ok, 500, 429, hang, drip, redirect, huge, reset …
	Accepted  bool          // 2xx headers went out whole, as far as a sender can know
	Left      bool          // the client had left by then
	Conn      string        // the client's address
}

// Transition is one row's change, written by a trigger in the transaction that made it; rows of
// transactions that rolled back are not here. Old and New are nil before an insert and after a delete.
type Transition struct {
	N        int64
	At       time.Time // clock_timestamp()
	Xid      uint64
	App      string // application_name: the process that did it
	Pid      int    // of its server process
	ID       int64
	Old, New *State
}

// State is the part of a row that changes.
type State struct {
	Dest       string
	Status     string
	Attempts   int
	Lease      string     // "" = none
	LeaseUntil *time.Time `json:",omitempty"`
	Available  time.Time
	Next       *time.Time `json:",omitempty"` // next_attempt_at
	Finished   *time.Time `json:",omitempty"`
	Kind       string     // error_kind
	Code       int        // error_code
	Receipt    string
}

// Fault is one that was injected, with what shows that it happened.
type Fault struct {
	N          int
	Kind       string // kill, crash:after-claim, stop, term, postgres, frozen, terminate, lock, snapshot, connections, wire:…, receiver:…
	Target     string // the process, connection or destination
	Began, End time.Time
	Proof      string // "" = none was found: the run is void
}

// Process is one life of one program.
type Process struct {
	Name       string // its application_name and worker-id
	Role       string // dispatcher, operator, producer, receiver
	Pid        int
	Began, End time.Time
	How        string // exit 0, signal killed, …
}

// Secret is the time in which some dispatcher may sign with a secret: from before it is told of it until after
// the last one has let go of it.
type Secret struct {
	Name        string
	Began, Gone time.Time // zero Gone = never
}

// Sample is a look at one process.
type Sample struct {
	Name       string
	At         time.Time
	RSS        int64 // bytes
	Files      int   // descriptors
	Goroutines int   // 0 = not known
}

// Command is one that an operator ran.
type Command struct {
	Name       string // its application_name
	Args       []string
	Began, End time.Time
	Exit       int    // -1 = killed
	Document   []byte `json:",omitempty"` // what -o json printed
	Words      string // stderr
}

// Stall is a time in which the runner, which does next to nothing, got no turn: the machine had others to serve.
type Stall struct{ From, To time.Time }

// Wait is how long a process that had something to do waited for a processor between two looks, all its threads together
// but no longer than the time between. Runner is the name of the run itself, whose wires are on everybody's way.
type Wait struct {
	Name     string
	From, To time.Time
	Waited   time.Duration
}

// Runner is the run's own process.
const Runner = "storm"

// Session is one that was seen idle in a transaction; of the run's own tools none is here.
type Session struct {
	App   string
	At    time.Time
	Since time.Duration // in the transaction's idle state
	After string        // the statement that ran last, in one line
}

// Row is one at the end, with what never changes.
type Row struct {
	State
	ID        int64
	Source    int64 // source_id; 0 = an original
	Key       string
	Tenant    string
	Type, Agg string
	Event     string
	Payload   string // SHA-256 in hex, as PostgreSQL prints it
	Error     string
	Origin    string
	Created   time.Time
	Archived  bool
}

// Attempt is one line of outbox_attempts.
type Attempt struct {
	ID      int64
	Event   int64 // its row
	N       int   // attempt
	Lease   string
	At      time.Time
	Outcome string
	Kind    string
	Code    int
}

// Audit is what an operation did to an event.
type Audit struct {
	Operation int64
	Command   string
	Who       string
	Reason    string
	App       string // of the process, when the run knows it
	Event     int64
	At        time.Time
	Action    string
	Status    string // before
	Attempts  int    // before
}

// Operation is what the record says of a command.
type Operation struct {
	ID      int64
	Command string
	Who     string
	Reason  string
	App     string // of its process; "" = it is of none that ran
	Done    int64  // events changed
	Ended   bool
}

// Search is one for secret canaries in one place.
type Search struct {
	Place string   // a log, an error column, a process list …
	Bytes int64    // that were looked through
	Found []string // the names of canaries that were there
}
