// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/keytable"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// apply performs one request.
func (m *Machine) apply(c *Conn, r *wire.Request) {
	m.counts.ops[r.Op]++
	if !c.standing.user {
		if c.standing.stale && !neutral(r) {
			if r.Op != wire.CancelWait { // which has no reply
				m.refuseRequest(c, r.ID, replaced())
			}
			return
		}
		m.use(c, r)
	}
	if c.dialect == wire.Legacy && c.holdings.nWaits > 0 && r.Op != wire.CancelWait {
		// A legacy client that timed out in a wait does not say so; it just goes on with its next request. Answering
		// the wait later would put that answer in the place of another one.
		m.dropWaits(c)
	}
	if (m.log != nil || m.config.Relay != nil) && m.divert(c, r) || r.Seq != 0 && (m.log == nil || m.log.change) && !m.numbered(c, r) {
		return
	}
	m.turn.passes = c.deferred && !m.turn.passed
	err := m.perform(c, r)
	if m.recorder.conn != nil {
		m.applied(c, r, err)
	}
	switch why := err.(type) { //nolint:errorlint // never wrapped
	case noRoomError:
		m.counts.ops[r.Op]--
		m.recorder = recorder{}
		m.hold(c, int(why))
		return
	case laterError:
		m.counts.ops[r.Op]--
		c.deferred = true
		m.recorder = recorder{}
		m.turn.yield(c)
		return
	}
	if c.deferred {
		c.deferred, m.turn.passed = false, true
	}
	if _, proposed := err.(proposedError); proposed { //nolint:errorlint // never wrapped
		return
	}
	if m.config.Observe != nil {
		m.config.Observe(c, r, err)
	}
	if err != nil {
		m.refuseRequest(c, r.ID, err)
	}
	m.recorder = recorder{}
}

// divert reports whether a request is not performed now: the relay has it, it waits for the log, or is refused for the one or the other.
func (m *Machine) divert(c *Conn, r *wire.Request) bool {
	switch {
	case m.config.Relay != nil && !m.answersItself(c, r):
		if err := m.relay(c, r); err != nil {
			m.refuseRequest(c, r.ID, err)
		}
	case m.log != nil && m.awaitsLog(c, r):
		m.counts.ops[r.Op]--
	default:
		return false
	}
	return true
}

// operation is what the machine does for a request.
type operation struct {
	do      func(m *Machine, c *Conn, r *wire.Request) error
	changes bool // something, whatever is in the request
}

// operations returns what the machine serves, by the operation's number.
func operations() *[wire.OpLimit]operation {
	return &[wire.OpLimit]operation{
		wire.Set: {(*Machine).set, true}, wire.CompareSet: {(*Machine).compareSet, true}, wire.MultiSet: {(*Machine).multiSet, true},
		wire.Append: {(*Machine).append, true}, wire.DeleteKey: {(*Machine).delete, true}, wire.Add: {(*Machine).add, false},
		wire.Get: {(*Machine).get, false}, wire.MultiGet: {(*Machine).multiGet, false}, wire.Check: {(*Machine).check, false},
		wire.NumKeys: {(*Machine).numKeys, false}, wire.ListKeys: {(*Machine).listKeys, false},
		wire.Wait: {(*Machine).wait, false}, wire.CancelWait: {(*Machine).cancelWait, false},
		wire.WatchKey: {(*Machine).watch, false}, wire.Barrier: {(*Machine).arrive, true},
		wire.QueuePush: {(*Machine).push, true}, wire.QueuePop: {(*Machine).pop, true}, wire.QueueLen: {(*Machine).queueLen, false},
		wire.Validate: {(*Machine).validate, false}, wire.Upgrade: {(*Machine).upgrade, false}, wire.Ping: {(*Machine).ping, false},
		wire.Hello: {(*Machine).hello, false}, wire.Clear: {(*Machine).clear, false}, wire.Stats: {(*Machine).stats, false},
		wire.Backup:  {(*Machine).backup, false},
		wire.Session: {(*Machine).openSession, false}, wire.Leave: {(*Machine).leaveSession, false}, wire.Acked: {(*Machine).acked, false},
		wire.Peek: {(*Machine).peek, false}, wire.Await: {(*Machine).await, false}, wire.Arrive: {(*Machine).arriveSeveral, true},
	}
}

func (m *Machine) perform(c *Conn, r *wire.Request) error {
	o := &m.operations[r.Op]
	if o.do == nil {
		return cohort.Newf("tcpstore: serve", cohort.Protocol, "%s is not served", r.Op)
	}
	if len(m.watchers)+len(m.keyChanges) > 0 {
		if err := m.mayNotify(r); err != nil {
			return err
		}
	}
	if o.changes && c.poll.times > 0 {
		c.poll.Forget() // it does something else between its questions
	}
	if m.log != nil && m.log.change {
		if r.Op >= wire.Session && r.Op <= wire.Acked {
			return m.proposeSession(c, r)
		}
		return m.propose(c, r)
	}
	return o.do(m, c, r)
}

// validate is VALIDATE, which a client sends once.
func (m *Machine) validate(c *Conn, _ *wire.Request) error {
	if c.standing.greeted {
		return cohort.New("tcpstore: serve", cohort.Protocol, "a second validate")
	}
	c.standing.greeted = true
	return nil
}

func (m *Machine) ping(c *Conn, r *wire.Request) error {
	start := m.begin(c, r.ID)
	c.out.Buf = wire.AppendUint32(c.out.Buf, r.Nonce)
	m.end(c, start)
	return nil
}

func (m *Machine) upgrade(c *Conn, r *wire.Request) error {
	if r.Nonce != wire.NativeVersion {
		return cohort.Newf("tcpstore: serve", cohort.Protocol, "native version %d, this server has %d", r.Nonce, wire.NativeVersion)
	}
	if c.holdings.nWaits > 0 {
		return cohort.New("tcpstore: serve", cohort.Protocol, "native mode asked for while a wait is open")
	}
	m.speak(c, wire.Native)
	return nil
}

func (m *Machine) set(c *Conn, r *wire.Request) error {
	if err := m.store(r.Key, r.Value); err != nil {
		return err
	}
	if c.dialect != wire.Native {
		m.noteSet(c, r.Key)
	}
	m.ack(c, r.ID)
	return nil
}

// store sets a key and wakes who waits for it.
func (m *Machine) store(key, value []byte) error {
	e := m.table.Find(key)
	if e == nil {
		return m.create(key, value)
	}
	if err := m.room(len(value) - len(e.Value())); err != nil {
		return err
	}
	if len(m.watchers) > 0 {
		m.notify(wire.KeyUpdated, key, e.Value(), value)
	}
	if data := m.take(); data != nil {
		m.table.Replace(e, data)
	} else {
		m.table.Set(e, value)
	}
	return nil
}

// create adds a key that is not there.
func (m *Machine) create(key, value []byte) error {
	if err := reserved(key); err != nil {
		return err
	}
	if err := m.room(len(key) + len(value) + keytable.EntryCost); err != nil {
		return err
	}
	data := m.take()
	if data == nil {
		data = keytable.Pair(key, value)
	}
	m.table.Insert(data, len(key))
	if m.waits.n > 0 {
		m.waits.created(key)
		m.wake()
	}
	if len(m.watchers) > 0 {
		m.notify(wire.KeyCreated, key, nil, value)
	}
	return nil
}

func (m *Machine) get(c *Conn, r *wire.Request) error {
	e := m.table.Find(r.Key)
	if e == nil {
		if c.dialect == wire.Native {
			return m.open(c, r, waitGet)
		}
		m.replyBytes(c, r.ID, nil) // as the libuv server: the other one would cut the client
		return nil
	}
	if err := m.mayReply(len(e.Value()), copiedSize(e.Value())); err != nil {
		return err
	}
	m.noteRead(c, r.Key)
	c.poll.Asked(m.clock.now, r.Key, e.Value())
	m.replyValue(c, r.ID, e)
	return nil
}

// sum is the outcome of an ADD that is done and not yet notified of.
type sum struct {
	old     []byte // for watchers; only when there are any
	sum     int64
	created bool
}

// add is ADD.
func (m *Machine) add(c *Conn, r *wire.Request) error {
	n, err := m.increase(r.Key, r.Num)
	if err != nil {
		return err
	}
	m.replyInt(c, r.ID, n.sum)
	m.added(r.Key, n)
	c.poll.Added(m.clock.now, r.Key, r.Num, n.sum)
	return nil
}

// increase changes a counter. Waiters are woken by added, after the caller has its reply.
func (m *Machine) increase(key []byte, delta int64) (sum, error) {
	var text [20]byte
	e := m.table.Find(key)
	if e == nil {
		if err := reserved(key); err != nil {
			return sum{}, err
		}
		digits := strconv.AppendInt(text[:0], delta, 10)
		if err := m.room(len(key) + len(digits) + keytable.EntryCost); err != nil {
			return sum{}, err
		}
		m.table.Insert(keytable.Pair(key, digits), len(key))
		return sum{sum: delta, created: true}, nil
	}
	n, err := storeop.ParseCounter(e.Value())
	if err != nil {
		return sum{}, notANumber(key, e.Value())
	}
	n += delta // wraps, as in PyTorch
	s := sum{sum: n, old: m.before(e)}
	m.table.Set(e, strconv.AppendInt(text[:0], n, 10))
	return s, nil
}

func (m *Machine) added(key []byte, n sum) {
	if n.created {
		m.waits.created(key)
		m.wake()
	}
	if len(m.watchers) == 0 {
		return
	}
	kind := wire.KeyUpdated
	if n.created {
		kind = wire.KeyCreated
	}
	m.notify(kind, key, n.old, strconv.AppendInt(nil, n.sum, 10))
}

func notANumber(key, value []byte) error {
	if len(value) > 32 {
		value = value[:32]
	}
	e := cohort.Newf("tcpstore: add", cohort.NotANumber, "the value is %q", value)
	e.Key = string(key)
	return e
}

func (m *Machine) compareSet(c *Conn, r *wire.Request) error {
	if isClaim(r.Key) {
		return m.claim(c, r)
	}
	e := m.table.Find(r.Key)
	answer := len(r.Value)
	copied := answer
	switch {
	case e == nil && len(r.Expected) > 0:
		answer, copied = len(r.Expected), len(r.Expected)
	case e != nil && !bytes.Equal(e.Value(), r.Expected):
		answer, copied = len(e.Value()), copiedSize(e.Value())
	}
	if err := m.mayReply(answer, copied); err != nil {
		return err // before anything is changed
	}
	switch {
	case e == nil && len(r.Expected) > 0:
		m.replyBytes(c, r.ID, r.Expected)
	case e == nil:
		if err := m.create(r.Key, r.Value); err != nil {
			return err
		}
		m.replyBytes(c, r.ID, r.Value)
	case bytes.Equal(e.Value(), r.Expected):
		if err := m.store(r.Key, r.Value); err != nil {
			return err
		}
		m.replyBytes(c, r.ID, r.Value)
	default:
		m.replyValue(c, r.ID, e)
	}
	return nil
}

func (m *Machine) append(c *Conn, r *wire.Request) error {
	e := m.table.Find(r.Key)
	if e == nil {
		if err := m.create(r.Key, r.Value); err != nil {
			return err
		}
		m.ack(c, r.ID)
		return nil
	}
	if n := len(e.Value()) + len(r.Value); n > m.longestValue() {
		return cohort.Newf("tcpstore: append", cohort.TooLarge, "a value of %d bytes is over the limit of %d", n, m.longestValue())
	}
	if err := m.room(m.table.Extension(e, len(r.Value))); err != nil {
		return err
	}
	old := m.before(e)
	m.table.Extend(e, r.Value)
	m.notify(wire.KeyAppended, r.Key, old, e.Value())
	m.ack(c, r.ID)
	return nil
}

// longestValue is how long a value may become by append.
func (m *Machine) longestValue() int {
	if m.applies() {
		return m.log.command.limit // of the machine that has made the command
	}
	return m.config.Limits.Value
}

func (m *Machine) delete(c *Conn, r *wire.Request) error {
	e := m.table.Find(r.Key)
	if e == nil {
		m.replyInt(c, r.ID, 0)
		return nil
	}
	listed := m.table.Walks() * (unitBytes + len(r.Key)) // each may have to list it now
	if err := m.turn.mayCopy(listed); err != nil && !m.applies() {
		return err
	}
	m.turn.copied(listed)
	old := m.before(e)
	m.table.Remove(r.Key)
	m.deleted(r.Key)
	m.notify(wire.KeyDeleted, r.Key, old, nil) // before the reply, as PyTorch does
	m.replyInt(c, r.ID, 1)
	return nil
}

func (m *Machine) numKeys(c *Conn, r *wire.Request) error {
	m.replyInt(c, r.ID, int64(m.table.Len()))
	return nil
}

func (m *Machine) check(c *Conn, r *wire.Request) error {
	if r.List.Count == 1 {
		list := r.List
		if key := list.Next(); m.isGreeting(key) || m.isReadBack(c, key) || m.isIdentity(key) {
			m.replyByte(c, r.ID, wire.Ready)
			return nil
		}
	}
	answer := wire.Ready
	for list := r.List; !list.Empty(); {
		m.turn.work++
		if !m.exists(list.Next()) {
			answer = wire.NotReady
			break
		}
	}
	switch list := r.List; {
	case answer == wire.Ready:
		c.poll.Forget()
	case list.Count == 1:
		c.poll.Asked(m.clock.now, list.Next(), nil)
	}
	m.replyByte(c, r.ID, answer)
	return nil
}

// isGreeting reports whether a key is one of those by which clients recognise a server.
func (m *Machine) isGreeting(key []byte) bool {
	return string(key) == wire.NativeKey || string(key) == wire.SessionsKey && m.hasSessions()
}

// exists is what CHECK and WAIT mean by a key that is there: a value, or a queue with items.
func (m *Machine) exists(key []byte) bool {
	if m.table.Find(key) != nil {
		return true
	}
	return len(m.queues.byKey) != 0 && m.queues.byKey[string(key)] != nil
}

// reserved returns an error for a key that only the server sets.
func reserved(key []byte) error {
	if len(key) == 0 || key[0] != wire.ReservedPrefix[0] || !bytes.HasPrefix(key, []byte(wire.ReservedPrefix)) {
		return nil
	}
	return cohort.Newf("tcpstore: serve", cohort.InvalidArgument, "key %q is the server's own", key)
}
