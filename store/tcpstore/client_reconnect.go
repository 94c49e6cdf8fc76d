// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// nativeStore speaks with cohort's server over one connection, which is replaced after it was lost.
type nativeStore struct {
	dialer  *storedial.Dialer
	current atomic.Pointer[nativeConn]
	dialing chan struct{}  // held by the one who connects again
	helpers sync.WaitGroup // of all connections
	known   knownStore
	lost    lostCalls

	mu struct {
		sync.Mutex
		closed error
		gone   context.CancelCauseFunc // ends a connect that is under way; nil: there is none
	}
}

// knownStore is the identity of the store that a client has used, so that a server with another one, started anew at the
// same address, is not taken for it. Until the first answer it is empty.
type knownStore struct{ identity atomic.Pointer[[]byte] }

func (k *knownStore) get() []byte {
	if id := k.identity.Load(); id != nil {
		return *id
	}
	return nil
}

func (k *knownStore) set(id []byte) { k.identity.Store(&id) }

func newNativeStore(d *storedial.Dialer, first storedial.Conn, known []byte) *nativeStore {
	s := &nativeStore{dialer: d, dialing: make(chan struct{}, 1)}
	if known != nil {
		s.known.set(known)
	}
	var own *session
	if first.Sessions {
		own = newSession()
	}
	s.current.Store(newNativeConn(first, &s.helpers, &s.known, &s.lost, own))
	return s
}

func (s *nativeStore) dialect() wire.Dialect { return wire.Native }

func (s *nativeStore) supports(context.Context, store.Feature) (bool, error) { return true, nil }

// do runs one operation. A read that the server has no room for at the moment, because very many want the same large
// value, is tried again until its time is up: what is on its way to others will soon be sent.
func (s *nativeStore) do(ctx context.Context, limit time.Time, q *request) (wire.Reply, error) {
	m := s.current.Load()
	if m.lost.Load() {
		var err error
		if m, err = s.reconnect(ctx, limit); err != nil {
			return wire.Reply{}, err
		}
	}
	r, err := m.do(ctx, limit, q)
	switch {
	case err == nil:
		return r, nil
	case m.sessions && !q.queued && isLost(err): // it broke a moment before
		return s.do(ctx, limit, q)
	case err == errResend: //nolint:errorlint // never wrapped
		return s.resend(ctx, limit, q, m.broken())
	case m.sessions && q.seq == 0 && !takesNumber[q.op] && isLost(err):
		return s.again(ctx, limit, q, err)
	}
	if (q.op == wire.Get || q.op == wire.MultiGet) && cohort.CodeOf(err) == cohort.Exhausted {
		return s.retry(ctx, limit, q, err)
	}
	return r, err
}

// connected returns the present connection, or a new one when that is lost.
func (s *nativeStore) connected(ctx context.Context, limit time.Time) (*nativeConn, error) {
	if m := s.current.Load(); !m.lost.Load() {
		return m, nil
	}
	return s.reconnect(ctx, limit)
}

// retry does a read again that the server has had no room for.
func (s *nativeStore) retry(ctx context.Context, limit time.Time, q *request, full error) (wire.Reply, error) {
	const firstPause, lastPause = 5 * time.Millisecond, 200 * time.Millisecond
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		end := time.Now().Add(pause/2 + rand.N(pause)) //nolint:gosec // jitter needs no secrecy
		if !limit.IsZero() && end.After(limit) {
			return wire.Reply{}, full
		}
		if over := sleepUntil(ctx, end, nil); !errors.Is(over, error(errLimit)) {
			return wire.Reply{}, full
		}
		var r wire.Reply
		m, err := s.connected(ctx, limit)
		if err == nil {
			r, err = m.do(ctx, limit, q)
		}
		switch {
		case errors.Is(err, error(errLimit)), errors.Is(err, cohort.DeadlineExceeded):
			return r, full // the last attempt got no answer in time; the ones before say why it took so long
		case cohort.CodeOf(err) != cohort.Exhausted:
			return r, err
		}
		full = err
	}
}

// reconnect returns a connection that is alive, opening it unless another call has done so meanwhile.
func (s *nativeStore) reconnect(ctx context.Context, limit time.Time) (*nativeConn, error) {
	if !limit.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, limit, errLimit)
		defer stop()
	}
	failpoint.At("tcpstore.redial.turn")
	select {
	case s.dialing <- struct{}{}:
		defer func() {
			failpoint.At("tcpstore.redial.over")
			<-s.dialing
		}()
	case <-ctx.Done():
		return nil, cohort.FromContext(ctx, "tcpstore")
	}
	old := s.current.Load()
	if !old.lost.Load() {
		return old, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := s.beginDial(cancel); err != nil {
		return nil, err
	}
	f, err := s.dialer.Again(ctx, storedial.Conn{Dialect: wire.Native})
	m, err := s.endDial(f, err)
	if err == nil {
		s.dialer.Log.LogAttrs(ctx, slog.LevelInfo, "connected to the store again", slog.String("addr", s.dialer.Addr),
			slog.String("lost", old.broken().Error()))
	}
	return m, err
}

// beginDial makes close end the connect that begins, by cancel.
func (s *nativeStore) beginDial(cancel context.CancelCauseFunc) error {
	failpoint.At("tcpstore.redial.begin")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed == nil {
		s.mu.gone = cancel
	}
	return s.mu.closed
}

// endDial takes the new connection over, or closes it when the store was closed meanwhile. The lost one before it was
// closed when it was lost.
func (s *nativeStore) endDial(f storedial.Conn, err error) (*nativeConn, error) {
	failpoint.At("tcpstore.redial.end")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.gone = nil
	switch {
	case s.mu.closed != nil:
		if err == nil {
			_ = f.Conn.Close()
		}
		return nil, s.mu.closed
	case err != nil:
		return nil, err
	}
	m := newNativeConn(f, &s.helpers, &s.known, &s.lost, s.passOn(f.Sessions))
	s.current.Store(m)
	return m, nil
}

// passOn takes the session from the connection that was lost. The caller holds mu.
func (s *nativeStore) passOn(sessions bool) *session {
	old := s.current.Load()
	old.mu.Lock()
	defer old.mu.Unlock()
	own := old.mu.session
	old.mu.session = nil
	switch {
	case !sessions:
		return nil
	case own == nil:
		return newSession()
	}
	return own
}

// close ends all calls with reason and waits for what was started.
func (s *nativeStore) close(reason error) {
	failpoint.At("tcpstore.close.begin")
	s.mu.Lock()
	s.mu.closed = reason
	if s.mu.gone != nil {
		s.mu.gone(reason)
	}
	m := s.current.Load()
	s.mu.Unlock()
	failpoint.At("tcpstore.close.fail")
	m.fail(reason)
	failpoint.At("tcpstore.close.join")
	s.helpers.Wait()
}
