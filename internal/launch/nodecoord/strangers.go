// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/security/joblisten"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// A stranger is a connection that has not asked to join with the id of the job. It may send MaxJoin bytes and has joinTime.

const (
	// MaxJoin bounds the request to join, and everything else that is sent before it.
	MaxJoin = 4 << 10
	// joinTime bounds the wait for it.
	joinTime = 5 * time.Second
)

var (
	errTooLong = errors.New("too much was sent before the request to join")
	greeting   = []byte(`{"alive":true}` + "\n") // by it a launcher is told from a store
)

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
	n := launchcore.Node(0)
	h.strangers.Accept(h.listener, h.quit, func(one *joblisten.Stranger) {
		id := n
		n++
		h.conns.Go(func() { h.meet(id, one) })
	})
}

// meet makes a node of a stranger that knows what only launchers of the job know, and serves it until its connection ends.
func (h *Host) meet(id launchcore.Node, one *joblisten.Stranger) {
	in, why := h.admit(id, one)
	if still := h.strangers.Remove(one); in == nil || !still { // one that was closed at this moment comes again
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
