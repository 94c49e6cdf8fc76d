// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodecoord is where the launchers of a job on several nodes meet. One launcher runs the [Host], and the launcher
// of each node talks to it over a [Wire] in [Message]s. The host decides nothing itself: it drives [launchcore.Job], opens
// the store of each attempt, and passes on what nodes ask and show each other.
package nodecoord

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// Launchers of a job talk in lines of JSON over one connection for each node.

// Message is a line. Exactly one of its fields is set.
type Message struct {
	// Of a node.
	Join   *Join   `json:"join,omitempty"`
	Failed *Failed `json:"failed,omitempty"`
	Ended  *Ended  `json:"ended,omitempty"`
	// Of the host. Welcome is the first after a request to join that it accepts; with it comes the certificate of the node, if it gets one.
	Welcome bool     `json:"welcome,omitempty"`
	Leaf    []byte   `json:"leaf,omitempty"`
	Begin   *Begin   `json:"begin,omitempty"`
	Stop    *stop    `json:"stop,omitempty"`
	Dismiss *Dismiss `json:"dismiss,omitempty"`
	Waiting *Waiting `json:"waiting,omitempty"`
	// Of a node, passed on by the host: a question to all nodes, and an answer to the one that asked.
	Examine *Question `json:"examine,omitempty"`
	Seen    *Answer   `json:"seen,omitempty"`
	// Of a node whose job is watched: the state of its ranks. Of the host, to those who watch: that of all nodes.
	Shown *Shown `json:"shown,omitempty"`
	View  *View  `json:"view,omitempty"`
	// Of a node, or of a host that is to be replaced.
	Leave *Leave `json:"leave,omitempty"`
	// Of both, again and again.
	Alive bool `json:"alive,omitempty"`
}

type (
	// Join is how a node begins: who it is, and which workers it has.
	Join struct {
		RunID string            `json:"run_id"`
		Host  string            `json:"host"`
		PID   int               `json:"pid"`
		Roles []launchcore.Role `json:"roles"`
		Wish  int               `json:"wish"`
		// Attempt and Restarts say how far the job had got with a lost host.
		Attempt  int `json:"attempt,omitempty"`
		Restarts int `json:"restarts,omitempty"`
		// Watches says that the job is watched on this node.
		Watches bool `json:"watches,omitempty"`
		// Proof shows that the node knows the secret of the job, Request asks for its certificate, and Clock is its time, in seconds
		// since 1970. They are only of a job whose launchers use TLS.
		Proof   []byte `json:"proof,omitempty"`
		Request []byte `json:"request,omitempty"`
		Clock   int64  `json:"clock,omitempty"`
	}
	// Failed says that a worker of the node has failed.
	Failed struct {
		Attempt int `json:"attempt"`
		launchcore.Failure
	}
	// Ended says that all workers of the node have ended.
	Ended struct {
		Failed
		OK bool `json:"ok"`
	}
	// Leave says that the node leaves the job, and why: "was ended by SIGTERM".
	Leave struct {
		Reason string `json:"reason"`
	}
	// Begin starts the workers of the node.
	Begin struct {
		launchcore.Assignment
		// Addr and Port are those of the store; StoreTLS says that it accepts only launchers, over TLS.
		Addr     string `json:"addr"`
		Port     int    `json:"port"`
		StoreTLS bool   `json:"store_tls,omitempty"`
		// Roster has the first of the nodes.
		Roster []Node `json:"roster,omitempty"`
		// Rules are those of the host: they count for all nodes.
		Rules Rules `json:"rules"`
		// Watched asks this node to send the state of its ranks again and again.
		Watched bool `json:"watched,omitempty"`
	}
	// Rules are what the launchers of a job should agree on.
	Rules struct {
		MinNodes    int `json:"min_nodes"`
		MaxNodes    int `json:"max_nodes"`
		MaxRestarts int `json:"max_restarts"`
	}
	// Node is a node that takes part, its first rank and how many it has.
	Node struct {
		Host    string `json:"host"`
		Base    cohort.Rank
		Workers int
	}
	// stop stops the workers of the node.
	stop struct {
		Reason string `json:"reason"`
		Linger bool   `json:"linger,omitempty"`
	}
	// Dismiss says how the job has ended, to a node that has no part in it any more.
	Dismiss struct {
		OK       bool         `json:"ok"`
		Code     uint8        `json:"code,omitempty"` // the number of a [cohort.Code]
		Sentence string       `json:"sentence"`
		Rank     *cohort.Rank `json:"rank,omitempty"` // of the worker that failed first
		// OtherJob says that the node has asked for a job with another id than that of this host.
		OtherJob bool `json:"otherJob,omitempty"`
	}
	// Waiting says how many nodes are there while the job waits for more.
	Waiting struct {
		Here int `json:"here"`
		Min  int `json:"min"`
		Max  int `json:"max"`
		// Numbers are those that the nodes which are here wish to have, if all of them wish for one.
		Numbers []int `json:"numbers,omitempty"`
	}
	// Question asks all nodes about their workers: what they are doing, or, with What, something else. [Presence] is for the host.
	Question struct {
		ID    int             `json:"id"`
		What  string          `json:"what,omitempty"`
		Asker launchcore.Node `json:"asker"` // filled in by the host
	}
	// Answer is what one node says: a verdict.Job of what its workers are doing, or what else was asked for.
	Answer struct {
		Question
		Job json.RawMessage `json:"job"`
		// First and Workers say which ranks the node that answers has. They are filled in by the host.
		First   cohort.Rank `json:"first"`
		Workers int         `json:"workers"`
	}
)

// workers counts the workers of a node; negative for one that makes no sense.
func (m *Join) workers() int {
	n := 0
	for _, r := range m.Roles {
		if r.Workers < 1 || n+r.Workers > 1<<16 {
			return -1
		}
		n += r.Workers
	}
	return n
}

const (
	// MaxMessage bounds a line.
	MaxMessage = 1 << 20
	// lastLook bounds the wait for what should be there already.
	lastLook = 50 * time.Millisecond
	// sayTime bounds a write.
	sayTime = 5 * time.Second
)

// Wire is a connection between launchers.
type Wire struct {
	net.Conn
	lines      *bufio.Scanner
	silence    time.Duration // after which the peer is declared dead
	identified bool
	last       atomic.Int64 // when something was received last, since the process began
}

// began is when this process did: the clock of the computer may be set.
var began = time.Now()

// Quiet returns how long ago the other side has said something.
func (w *Wire) Quiet() time.Duration { return time.Since(began) - time.Duration(w.last.Load()) }

// Identified reports whether the peer has ever sent something that a launcher sends. It may be asked when Receive has failed.
func (w *Wire) Identified() bool { return w.identified }

// AliveEvery is how often each side says that it is there: several times within the silence that is allowed.
func (w *Wire) AliveEvery() time.Duration {
	return max(time.Millisecond, min(time.Second, w.silence/4))
}

// NewWire talks over a connection. silence is after which time without a message the peer is declared dead.
func NewWire(c net.Conn, silence time.Duration) *Wire {
	w := &Wire{Conn: c, lines: bufio.NewScanner(longTimeout{c}), silence: silence}
	w.lines.Buffer(make([]byte, 0, 4096), MaxMessage)
	w.last.Store(int64(time.Since(began)))
	return w
}

// longTimeout reads once more when the time is over. A process that was stopped itself, or whose machine slept, finds that its time is over
// and what the other side has said in the meantime.
type longTimeout struct{ net.Conn }

func (p longTimeout) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if n > 0 || !silent(err) {
		return n, err
	}
	_ = p.SetReadDeadline(time.Now().Add(lastLook))
	return p.Conn.Read(b)
}

// Receive returns the next message that is more than a heartbeat.
func (w *Wire) Receive() (Message, error) {
	for {
		var m Message
		_ = w.SetReadDeadline(time.Now().Add(w.silence))
		if !w.lines.Scan() {
			if err := w.lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // TLS calls the end of TCP so
				return m, err
			}
			return m, net.ErrClosed
		}
		if err := printable.Unmarshal(w.lines.Bytes(), &m); err != nil {
			return m, fmt.Errorf("nodecoord: malformed message: %w", err)
		}
		w.identified = true
		w.last.Store(int64(time.Since(began)))
		if !m.Alive {
			return m, nil
		}
	}
}

// Send sends a message.
func (w *Wire) Send(m Message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = w.SetWriteDeadline(time.Now().Add(sayTime))
	_, err = w.Write(append(b, '\n'))
	return err
}

// Greeting is a connection of which the first byte may be waited for before it is read.
type Greeting struct {
	net.Conn
	first []byte
}

// Greeted returns a connection of which nothing has been read.
func Greeted(c net.Conn) *Greeting { return &Greeting{Conn: c} }

// Wait waits until something has arrived, for so long at most.
func (g *Greeting) Wait(limit time.Duration) error {
	if len(g.first) > 0 {
		return nil
	}
	var b [1]byte
	_ = g.SetReadDeadline(time.Now().Add(limit))
	n, err := g.Conn.Read(b[:])
	_ = g.SetReadDeadline(time.Time{})
	g.first = append(g.first, b[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

// Read implements [net.Conn].
func (g *Greeting) Read(b []byte) (int, error) {
	if n := copy(b, g.first); n > 0 {
		g.first = g.first[n:]
		return n, nil
	}
	return g.Conn.Read(b)
}
