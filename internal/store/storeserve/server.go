// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/observe"
)

// Config is what a server is made of. All of it is needed but for Stats, Hook, Portable and what is about users.
type Config struct {
	// Machine is the store's. Loops, Observe and Stats are set by Start.
	Machine storecore.Config
	// Stats makes the answer to a STATS request, once a turn at most.
	Stats func(*Core) []byte
	// Conns is the most connections, and Stall how long a client may leave its output unread.
	Conns int
	Stall time.Duration
	// Loops is the number of event loops, where they serve.
	Loops int
	// Portable serves with goroutines where event loops would.
	Portable bool
	// AllowUIDs are users of this host whose connections are accepted, beside this process's own and root.
	AllowUIDs []uint32
	// OnOtherUser is called with sentences about the connections of users that are refused; nil writes them into the log.
	OnOtherUser func(string)
	// Journal has changes logged before they are done; nil: they are done at once.
	Journal Journal
	// Restored is the machine, made with Logged, that holds what the journal has held before; nil: an empty one.
	Restored *storecore.Machine
	Logger   *slog.Logger
	Hook     observe.Hook

	// Stepped is called at the end of every step, while the machine stands still, and Unlocked after it, when it does not: a gateway sends
	// what its relay has for the store. Event loops do not call them, so Portable must be set.
	Stepped, Unlocked func()

	meter func() *meter // for each loop
}

// Server serves one machine on one listener.
type Server struct {
	driver  driver
	report  *reporter
	journal Journal
	ready   chan struct{} // closed when driver is set, or cannot be
	ended   chan struct{}
}

// driver moves bytes between sockets and a machine.
type driver interface {
	do(fn func(*Core)) bool
	drain() <-chan struct{}
	end()
}

// Start serves l, which belongs to the server from then on, also when Start fails.
func Start(l net.Listener, config Config) (*Server, error) {
	s := &Server{report: newReporter(config.Logger), journal: config.Journal, ready: make(chan struct{}), ended: make(chan struct{})}
	if s.journal != nil {
		s.journal.Begin(sink{s})
	}
	d, err := newDriver(l, newCore(config, s.report), config)
	if err == nil {
		s.driver = d
	}
	close(s.ready)
	if err != nil {
		_ = l.Close()
		s.endJournal()
		return nil, err
	}
	return s, nil
}

// Do runs fn while the machine stands still. It returns false when the server has ended.
func (s *Server) Do(fn func(*Core)) bool { return s.driver.do(fn) }

// Clients returns how many clients are connected, and for people to read the addresses of at most as many as asked for.
func (s *Server) Clients(most int) (n int, some string) {
	s.Do(func(c *Core) { n, some = c.Machine.Conns(), strings.Join(c.Machine.Peers(most), ", ") })
	return n, some
}

// Drain stops accepting; the returned channel is closed when the last client is gone.
func (s *Server) Drain() <-chan struct{} { return s.driver.drain() }

// End closes everything and joins all goroutines. It is called once.
func (s *Server) End() {
	s.driver.end()
	s.endJournal()
}

func (s *Server) endJournal() {
	if s.journal != nil {
		s.journal.End()
	}
	close(s.ended)
	s.report.end()
}
