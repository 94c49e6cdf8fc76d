// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// torchStore speaks with a PyTorch server, old or new, by the rules of its own clients.
type torchStore struct {
	dialer *storedial.Dialer
	like   storedial.Conn // what further connections are
	pool   *pool

	mu    sync.Mutex
	knows map[wire.Op]bool // whether this server has operations that only newer ones have
}

func newTorchStore(d *storedial.Dialer, first storedial.Conn, waitConns int) *torchStore {
	s := &torchStore{dialer: d, like: first, knows: map[wire.Op]bool{}}
	s.like.Conn = nil
	s.pool = newPool(waitConns, s.open)
	s.pool.seed(&torchConn{conn: first.Conn, dialect: first.Dialect})
	return s
}

func (s *torchStore) open(ctx context.Context) (*torchConn, error) {
	f, err := s.dialer.Again(ctx, s.like)
	if err != nil {
		return nil, err
	}
	return &torchConn{conn: f.Conn, dialect: f.Dialect}, nil
}

func (s *torchStore) dialect() wire.Dialect { return s.like.Dialect }

func (s *torchStore) close(reason error) { s.pool.close(reason) }

// do runs one operation.
func (s *torchStore) do(ctx context.Context, limit time.Time, q *request) (wire.Reply, error) {
	bounded := ctx
	if !limit.IsZero() {
		var cancel context.CancelFunc
		bounded, cancel = context.WithDeadlineCause(ctx, limit, errLimit)
		defer cancel()
	}
	r, err := s.run(bounded, q)
	if err != nil {
		if q.wait && errors.Is(err, error(errLimit)) {
			err = s.lastLook(ctx, q)
		}
		if closed := s.pool.reason(); closed != nil {
			return r, closed
		}
	}
	return r, err
}

func (s *torchStore) run(ctx context.Context, q *request) (wire.Reply, error) {
	switch q.op {
	case wire.Set, wire.Append, wire.MultiSet, wire.QueuePush:
		return s.confirmed(ctx, q)
	case wire.Barrier:
		return wire.Reply{}, s.barrier(ctx, q)
	case wire.Wait:
		return wire.Reply{}, s.await(ctx, q.wireKeys(), nil)
	case wire.Get:
		return s.get(ctx, q, []string{q.wireKey()})
	case wire.MultiGet:
		return s.get(ctx, q, q.wireKeys())
	case wire.QueuePop:
		if q.wait {
			return s.popWaiting(ctx, q)
		}
		return s.popNow(ctx, q)
	case wire.Add:
		r, err := s.short(ctx, q)
		if isLost(err) {
			err = s.whyNoSum(ctx, q, err)
		}
		return r, err
	default:
		return s.short(ctx, q)
	}
}

// short runs an operation that is answered at once.
func (s *torchStore) short(ctx context.Context, q *request) (r wire.Reply, err error) {
	err = s.with(ctx, func(t *torchConn) error {
		return t.exchange(ctx, q.append(nil, t.dialect), func() error {
			got, readErr := t.reply(q.op, len(q.keys))
			r = own(got)
			return readErr
		})
	})
	return r, err
}

// confirmed runs an operation that PyTorch does not answer, together with a question that it does answer: when the
// answer is there the write has happened, and a connection that was cut instead shows as an error. It stays one round
// trip, and needs one byte more than the write alone.
func (s *torchStore) confirmed(ctx context.Context, q *request) (wire.Reply, error) {
	return wire.Reply{}, s.with(ctx, func(t *torchConn) error {
		b := wire.AppendPlain(q.append(nil, t.dialect), t.dialect, wire.NumKeys)
		return t.exchange(ctx, b, func() error {
			_, err := t.reply(wire.NumKeys, 0)
			return err
		})
	})
}

// with runs use on a connection for short operations.
func (s *torchStore) with(ctx context.Context, use func(*torchConn) error) error {
	t, err := s.pool.take(ctx, forShort)
	if err != nil {
		return err
	}
	err = use(t)
	s.giveBack(ctx, t, forShort, err)
	return err
}

// giveBack returns a connection after an operation that ended with err.
func (s *torchStore) giveBack(ctx context.Context, t *torchConn, u use, err error) {
	if isLost(err) && s.pool.reason() == nil {
		s.dialer.Log.LogAttrs(ctx, slog.LevelDebug, "store connection lost",
			slog.String("addr", s.dialer.Addr), slog.String("connection", t.String()), slog.String("err", err.Error()))
		s.pool.purge()
	}
	s.pool.put(t, u)
}

func isLost(err error) bool {
	var lost *lostError
	return errors.As(err, &lost)
}

// get is what PyTorch's client does: WAIT, then GET. A CHECK goes with the GET, because between the two the key may have
// been deleted: then one kind of server closes the connection and the other kind answers with an empty value. In both
// cases the wait starts anew.
func (s *torchStore) get(ctx context.Context, q *request, keys []string) (r wire.Reply, err error) {
	err = s.await(ctx, keys, func(t *torchConn) (again bool, err error) {
		b := wire.AppendKeys(q.append(nil, t.dialect), t.dialect, wire.Check, keys...)
		deleted := false
		err = t.exchange(ctx, b, func() error {
			got, readErr := t.reply(q.op, len(keys))
			if readErr != nil {
				return readErr
			}
			r = own(got)
			check, readErr := t.reply(wire.Check, 0)
			deleted = check.Byte != wire.Ready
			return readErr
		})
		if isLost(err) {
			return true, nil
		}
		return err == nil && deleted && hasEmpty(r), err
	})
	return r, err
}

// hasEmpty reports whether a value could be that of a missing key.
func hasEmpty(r wire.Reply) bool {
	if r.Values == nil {
		return len(r.Value) == 0
	}
	for _, v := range r.Values {
		if len(v) == 0 {
			return true
		}
	}
	return false
}

// popWaiting waits for an item and takes it; another client may be faster, then it waits again.
func (s *torchStore) popWaiting(ctx context.Context, q *request) (r wire.Reply, err error) {
	err = s.await(ctx, []string{q.wireKey()}, func(t *torchConn) (again bool, err error) {
		r, err = t.pop(ctx, q)
		return err == nil && r.Num <= 0, err
	})
	return r, err
}

// popNow takes an item if there is one.
func (s *torchStore) popNow(ctx context.Context, q *request) (r wire.Reply, err error) {
	err = s.with(ctx, func(t *torchConn) error {
		r, err = t.pop(ctx, q)
		return err
	})
	return r, err
}

// pop sends a pop. Once it is sent it takes an item, which must not be lost because ctx ends now.
func (t *torchConn) pop(ctx context.Context, q *request) (r wire.Reply, err error) {
	if e := cohort.FromContext(ctx, "tcpstore"); e != nil {
		return r, e
	}
	sure, cancel := outlive(ctx, popGrace)
	defer cancel()
	err = t.exchange(sure, q.append(nil, t.dialect), func() error {
		got, readErr := t.reply(q.op, 0)
		r = own(got)
		return readErr
	})
	if e := cohort.FromContext(ctx, "tcpstore"); err != nil && e != nil && sure.Err() != nil {
		err = e
		if errors.Is(err, error(errLimit)) {
			err = errSilent
		}
	}
	return r, err
}

// outlive returns a context that ends grace later than ctx.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		failpoint.At("tcpstore.torch.grace")
		select {
		case <-timer.C:
			cancel(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel(nil)
	}
}

// await waits until all keys exist and runs then, if not nil, on a connection; when that wants it again it waits again.
func (s *torchStore) await(ctx context.Context, keys []string, then func(*torchConn) (again bool, err error)) error {
	const firstPause, lastPause = time.Millisecond, 50 * time.Millisecond
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		t, u, err := s.whenPresent(ctx, keys)
		if err != nil {
			return err
		}
		again := false
		if then != nil {
			again, err = then(t)
		}
		s.giveBack(ctx, t, u, err)
		if !again {
			return err
		}
		if err := sleepUntil(ctx, time.Now().Add(pause), nil); !errors.Is(err, error(errLimit)) {
			return err
		}
	}
}

// whenPresent returns a connection once all keys exist. Where all connections for waits are in use it polls meanwhile, on
// those for short operations, so that waits cannot starve one another.
func (s *torchStore) whenPresent(ctx context.Context, keys []string) (*torchConn, use, error) {
	const firstPause, lastPause = 2 * time.Millisecond, 50 * time.Millisecond
	t, err := s.pool.try(ctx, forWait)
	for pause := firstPause; err == nil && t == nil; pause = min(2*pause, lastPause) {
		var there bool
		if t, there, err = s.checkedConn(ctx, keys); err != nil || there {
			return t, forShort, err
		}
		timer := time.NewTimer(pause)
		failpoint.At("tcpstore.torch.poll")
		select {
		case <-timer.C:
		case <-ctx.Done():
			err = cohort.FromContext(ctx, "tcpstore")
		case s.pool.slots[forWait] <- struct{}{}:
			t, err = s.pool.connection(ctx, forWait)
		}
		timer.Stop()
	}
	if err != nil {
		return nil, 0, err
	}
	err = t.wait(ctx, wire.AppendKeys(nil, t.dialect, wire.Wait, keys...), func(ctx context.Context) (bool, error) {
		return s.present(ctx, keys)
	})
	if err == nil && t.unusable { // a legacy connection that still has an answer to come
		s.giveBack(ctx, t, forWait, nil)
		t, err = s.pool.take(ctx, forShort)
		return t, forShort, err
	}
	if err != nil {
		s.giveBack(ctx, t, forWait, err)
		return nil, 0, err
	}
	return t, forWait, nil
}

// checkedConn returns a connection for short operations if all keys exist.
func (s *torchStore) checkedConn(ctx context.Context, keys []string) (t *torchConn, there bool, err error) {
	if t, err = s.pool.take(ctx, forShort); err != nil {
		return nil, false, err
	}
	if there, err = t.check(ctx, keys); err != nil || !there {
		s.giveBack(ctx, t, forShort, err)
		return nil, false, err
	}
	return t, true, nil
}

func (s *torchStore) present(ctx context.Context, keys []string) (there bool, err error) {
	err = s.with(ctx, func(t *torchConn) error {
		there, err = t.check(ctx, keys)
		return err
	})
	return there, err
}

// lastLook is the error of a wait that the store's timeout ended: no client has set the keys, or the server is silent.
func (s *torchStore) lastLook(ctx context.Context, q *request) error {
	keys := q.wireKeys()
	if q.keys == nil {
		keys = []string{q.wireKey()}
	}
	last, cancel := context.WithTimeout(ctx, finalReplyTime)
	defer cancel()
	_, err := s.present(last, keys)
	if e := cohort.FromContext(ctx, "tcpstore"); e != nil {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errSilent
	}
	return errLimit
}

func (t *torchConn) check(ctx context.Context, keys []string) (there bool, err error) {
	err = t.exchange(ctx, wire.AppendKeys(nil, t.dialect, wire.Check, keys...), func() error {
		r, readErr := t.reply(wire.Check, 0)
		there = r.Byte == wire.Ready
		return readErr
	})
	return there, err
}

// whyNoSum finds out whether an ADD lost its connection because the value is not a number: PyTorch's servers report it so.
func (s *torchStore) whyNoSum(ctx context.Context, q *request, lost error) error {
	key := q.wireKey()
	t, there, err := s.checkedConn(ctx, []string{key})
	if err != nil || !there {
		return lost
	}
	var value []byte
	err = t.exchange(ctx, wire.AppendKey(nil, t.dialect, wire.Get, key), func() error {
		r, readErr := t.reply(wire.Get, 0)
		value = own(r).Value
		return readErr
	})
	s.giveBack(ctx, t, forShort, err)
	if err != nil {
		return lost
	}
	if _, err := storeop.ParseCounter(value); err != nil {
		return storeop.CounterError(q.opName(), q.key, value, err)
	}
	return lost
}

// supports finds out which operations the server has. Queues and the listing of keys came after the last change of the
// greeting, so the first question for one of them is put to the server, on a connection that it may close.
func (s *torchStore) supports(ctx context.Context, f store.Feature) (bool, error) {
	switch f {
	case store.FeatureAppend, store.FeatureMultiGet, store.FeatureMultiSet:
		return s.like.Dialect == wire.V, nil
	case store.FeatureQueue:
		return s.has(ctx, &request{op: wire.QueueLen, key: "cohort/probe"})
	case store.FeatureListKeys:
		return s.has(ctx, &request{op: wire.ListKeys})
	}
	return false, nil
}

func (s *torchStore) has(ctx context.Context, probe *request) (bool, error) {
	if s.like.Dialect != wire.V || s.like.V0 {
		return false, nil
	}
	failpoint.At("tcpstore.torch.knows")
	s.mu.Lock()
	known, ok := s.knows[probe.op]
	s.mu.Unlock()
	if ok {
		return known, nil
	}
	// A server that does not know an operation closes the connection. So may a network; two times in a row, after an
	// answer to another question on the same connection, it was the server.
	for range 2 {
		var err error
		if known, err = s.probe(ctx, probe); err != nil {
			return false, err
		}
		if known {
			break
		}
	}
	failpoint.At("tcpstore.torch.known")
	s.mu.Lock()
	s.knows[probe.op] = known
	s.mu.Unlock()
	return known, nil
}

// probe asks on a connection of its own whether the server has an operation. No means that it answered another question
// on that connection and closed it at this one.
func (s *torchStore) probe(ctx context.Context, probe *request) (known bool, err error) {
	t, err := s.pool.openOne(ctx)
	if err != nil {
		return false, err
	}
	defer s.pool.drop(t)
	asked := false
	b := probe.append(wire.AppendPlain(nil, t.dialect, wire.NumKeys), t.dialect)
	err = t.exchange(ctx, b, func() error {
		if _, readErr := t.reply(wire.NumKeys, 0); readErr != nil {
			return readErr
		}
		asked = true
		_, readErr := t.reply(probe.op, 0)
		return readErr
	})
	if asked && isLost(err) {
		return false, nil
	}
	return err == nil, err
}
