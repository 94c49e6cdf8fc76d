// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"bytes"
	"container/list"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// A stranger is a connection that has not asked to join with the id of the job. It may send maxJoin bytes and has joinTime. Strangers are
// few, and when there are more, the oldest one of the address that has the most of them is closed: descriptors and memory of the launcher
// are for the job.

const (
	// MaxJoin bounds the request to join, and everything else that is sent before it.
	MaxJoin = 4 << 10
	// joinTime bounds the wait for it.
	joinTime = 5 * time.Second
	// mostStrangers and leastStrangers bound the strangers, at one in descriptorShare of the descriptors that the process may have.
	mostStrangers, leastStrangers = 256, 16
	descriptorShare               = 8
)

var (
	errTooLong = errors.New("too much was sent before the request to join")
	greeting   = []byte(`{"alive":true}` + "\n") // by it a launcher is told from a store
)

// strangers are the connections of a host that have not joined.
type strangers struct {
	most int
	mu   struct {
		sync.Mutex
		byHost map[string]*list.List // of *stranger, the oldest first
		n      int
		ended  bool
	}
}

type stranger struct {
	net.Conn
	host  string
	place *list.Element // nil once it is not a stranger any more
}

func newStrangers(most int) *strangers {
	s := &strangers{most: most}
	s.mu.byHost = map[string]*list.List{}
	return s
}

// add counts a connection, and closes others if there are too many.
func (s *strangers) add(c net.Conn) *stranger {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	one := &stranger{Conn: c, host: host}
	s.mu.Lock()
	defer s.mu.Unlock()
	same := s.mu.byHost[host]
	if same == nil {
		same = list.New()
		s.mu.byHost[host] = same
	}
	one.place = same.PushBack(one)
	s.mu.n++
	for s.mu.n > s.most || s.mu.ended && s.mu.n > 0 {
		s.dropLocked()
	}
	return one
}

// drop closes a part of the strangers, at least one. It reports false if there are none.
func (s *strangers) drop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.n == 0 {
		return false
	}
	for left := s.mu.n / 2; s.mu.n > left; {
		s.dropLocked()
	}
	return true
}

func (s *strangers) dropLocked() {
	var most *list.List
	for _, same := range s.mu.byHost {
		if most == nil || same.Len() > most.Len() {
			most = same
		}
	}
	oldest := most.Front().Value.(*stranger) //nolint:errcheck // all of them are
	s.removeLocked(oldest)
	_ = oldest.Close()
}

// remove says that a connection has joined or ended. It reports false if the connection was closed meanwhile, to make room.
func (s *strangers) remove(one *stranger) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	still := one.place != nil
	s.removeLocked(one)
	return still
}

func (s *strangers) removeLocked(one *stranger) {
	if one.place == nil {
		return
	}
	same := s.mu.byHost[one.host]
	same.Remove(one.place)
	if one.place = nil; same.Len() == 0 {
		delete(s.mu.byHost, one.host)
	}
	s.mu.n--
}

// end closes all, and those that are still to come.
func (s *strangers) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.mu.ended = true; s.mu.n > 0; {
		s.dropLocked()
	}
}

// request reads until the request to join is there, and returns it with what follows it. foreign says that the client has sent something
// else than a launcher does, or nothing in time.
func request(c net.Conn, until time.Time) (m *Join, rest []byte, foreign bool, err error) {
	_ = c.SetReadDeadline(until)
	buf, used, parsed := make([]byte, MaxJoin), 0, 0
	for looked := false; used < len(buf); {
		n, failed := c.Read(buf[used:])
		used += n
		for {
			line, _, whole := bytes.Cut(buf[parsed:used], []byte{'\n'})
			if !whole {
				break
			}
			var said struct {
				Join *Join `json:"join"`
			}
			if err = printable.Unmarshal(line, &said); err != nil {
				return nil, nil, true, err
			}
			if parsed += len(line) + 1; said.Join != nil {
				return said.Join, buf[parsed:used], false, nil
			}
		}
		switch {
		case failed == nil || n > 0:
		case silent(failed) && !looked: // this process itself may have been stopped for that time
			looked = true
			_ = c.SetReadDeadline(time.Now().Add(lastLook))
		default:
			return nil, nil, silent(failed) || parsed < used && !errors.Is(failed, net.ErrClosed), failed
		}
	}
	return nil, nil, true, errTooLong
}

// refuse tells a client that it may not join, and waits for its end for as long as a stranger has: closing the connection while there is
// something to be read would take the answer back.
func refuse(c net.Conn, d Dismiss) {
	answer, _ := json.Marshal(Message{Dismiss: &d}) //nolint:errchkjson // it has no field that fails
	_, _ = c.Write(append(answer, '\n'))
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_, _ = io.CopyN(io.Discard, c, MaxJoin)
}

// accept lets clients in.
func (h *Host) accept() {
	for n := launchcore.Node(0); ; n++ {
		c, err := h.listener.Accept()
		switch {
		case err == nil:
			one := h.strangers.add(c)
			h.conns.Go(func() { h.meet(n, one) })
		case errors.Is(err, net.ErrClosed):
			return
		case (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && h.strangers.drop():
		default:
			select {
			case <-time.After(100 * time.Millisecond):
			case <-h.quit:
				return
			}
		}
	}
}

// meet makes a node of a stranger that knows what only launchers of the job know, and serves it until its connection ends.
func (h *Host) meet(id launchcore.Node, one *stranger) {
	in, why := h.admit(id, one)
	if still := h.strangers.remove(one); in == nil || !still { // one that was closed at this moment comes again
		if in == nil && why != gone {
			h.report(why, one)
		}
		_ = one.Close()
		return
	}
	c := &conn{id: id, wire: NewWire(&Greeting{Conn: in.link, first: in.rest}, h.cfg.Silence), out: newOutbox(), begun: -1, leaf: in.leaf}
	select {
	case h.events <- event{conn: c, fresh: true, message: Message{Join: in.join}}:
		h.conns.Go(func() { h.write(c) })
		h.read(c)
	case <-h.quit:
		_ = one.Close()
	}
}
