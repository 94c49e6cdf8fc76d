// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// StoreConfig of a member that serves a store.
type StoreConfig struct {
	// Config is the member's; State is set by ServeStore.
	Config
	// Addr is where clients connect, "host:port".
	Addr string
	// Options are the server's.
	Options []tcpstore.ServerOption
}

// Store is a store that several machines keep: a [Member] and a server for the same clients as [tcpstore.Server]. The leader serves; at
// the other members changes and reads are refused with an error that names the leader, and clients of PyTorch are disconnected.
type Store struct {
	config  StoreConfig
	member  *Member
	replica *replica

	ctx   context.Context //nolint:containedctx // it ends with Close, or when the store cannot go on
	stop  context.CancelCauseFunc
	tasks sync.WaitGroup

	mu      sync.Mutex
	server  *tcpstore.Server
	serving chan struct{} // closed when there is one
}

// ServeStore starts a member and a server for clients. The caller closes the store.
func ServeStore(ctx context.Context, c StoreConfig) (*Store, error) {
	s := &Store{config: c, replica: newReplica(), serving: make(chan struct{})}
	c.State = s.replica
	var err error
	if s.member, err = Start(ctx, c.Config); err != nil {
		return nil, err
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	if err = s.begin(c.Addr); err != nil {
		return nil, errors.Join(err, s.member.Close(ctx))
	}
	return s, nil
}

// begin serves at once, or when the cluster has formed if it is new: before that the store has no identity, and has to say "wait".
func (s *Store) begin(addr string) error {
	select {
	case <-s.replica.formed:
		if err := s.listen(addr); err != nil {
			return err
		}
	default:
		if err := probe(addr); err != nil {
			return err
		}
	}
	s.tasks.Go(s.keep)
	return nil
}

// probe finds out early that an address is taken.
func probe(addr string) error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return cohort.Newf("cluster: serve", cohort.AlreadyExists, "%w; end the process that has it, or choose another port", err)
	case err != nil:
		return cohort.Wrap("cluster: serve", cohort.Unavailable, err)
	}
	return l.Close()
}

func (s *Store) listen(addr string) error {
	server, err := tcpstore.Listen(addr, append(s.config.Options, tcpstore.WithJournal(s.replica.open))...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.server == nil {
		close(s.serving)
	}
	s.server = server
	s.mu.Unlock()
	return s.member.post(s.ctx, func(machine *membercore.Machine) {
		if self, _ := machine.Leading(); self {
			s.replica.Leads(true)
		}
	})
}

// keep serves anew when the replica was replaced by a snapshot of the leader: its clients are cut, and connect again.
func (s *Store) keep() {
	if !s.first() {
		return
	}
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.member.Done():
			s.stop(s.member.Err())
			return
		case <-s.replica.replaced:
		}
		server := s.Server()
		addr := server.Addr().String()
		_ = server.Close()
		for s.listen(addr) != nil && s.ctx.Err() == nil {
			pause(s.ctx, 50*time.Millisecond)
		}
	}
}

// first serves for the first time, and reports whether it does.
func (s *Store) first() bool {
	select {
	case <-s.ctx.Done():
		return false
	case <-s.member.Done():
		s.stop(s.member.Err())
		return false
	case <-s.replica.formed:
	}
	if s.Server() != nil {
		return true
	}
	if err := s.listen(s.config.Addr); err != nil {
		s.member.fail(err)
		s.stop(err)
		return false
	}
	return true
}

// Ready is closed when the store serves clients: a new cluster has to form first, for which more than half of its members have to run.
func (s *Store) Ready() <-chan struct{} { return s.serving }

// Server is the one that serves clients now, nil before the store is ready. It is another one after the member has taken over a snapshot
// of the leader.
func (s *Store) Server() *tcpstore.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// Member is the store's.
func (s *Store) Member() *Member { return s.member }

// String names the store by its member.
func (s *Store) String() string { return "store of " + s.member.String() }

// Done is closed when the store has ended; [Member.Err] says why.
func (s *Store) Done() <-chan struct{} { return s.ctx.Done() }

// Close ends the store. A leader hands over first, see [Member.Close].
func (s *Store) Close(ctx context.Context) error {
	s.member.handOver(ctx)
	s.stop(errClosed)
	s.tasks.Wait()
	err := s.member.Close(ctx) // first: what the server does not apply any more must not get into a snapshot
	if server := s.Server(); server != nil {
		err = errors.Join(err, server.Close())
	}
	return err
}

// leaderHint is the reason for a refusal, with what is known of the leader.
func (m *Member) leaderHint(reason error) error {
	if !errors.Is(reason, ErrNotLeader) {
		return reason
	}
	s := m.Status()
	if s.Leader == "" || s.Leading {
		return cohort.New("cluster", cohort.Unavailable, "no member of the cluster leads at the moment")
	}
	return cohort.Newf("cluster", cohort.Unavailable, "this is member %s of the cluster; member %s at %s leads: use the store there",
		s.Name, s.Leader, leaderAddr(s))
}
