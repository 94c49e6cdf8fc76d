// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/cohort-dist/cohort/internal/launchcore"
)

// Launchers of a job talk in lines of JSON over one connection for each node.

// message is a line. Exactly one of its fields is set.
type message struct {
	// Of a node.
	Join   *joinMessage   `json:"join,omitempty"`
	Failed *failedMessage `json:"failed,omitempty"`
	Ended  *endedMessage  `json:"ended,omitempty"`
	Leave  *leaveMessage  `json:"leave,omitempty"`
	// Of the host.
	Begin   *beginMessage   `json:"begin,omitempty"`
	Stop    *stopMessage    `json:"stop,omitempty"`
	Dismiss *dismissMessage `json:"dismiss,omitempty"`
	Waiting *waitingMessage `json:"waiting,omitempty"`
	// Of a node, passed on by the host: a question to all nodes, and an answer to the one that asked.
	Examine *examineMessage `json:"examine,omitempty"`
	Seen    *seenMessage    `json:"seen,omitempty"`
	// Of a node whose job is watched: the state of its ranks. Of the host, to those who watch: that of all nodes.
	Shown *shownMessage `json:"shown,omitempty"`
	View  *viewMessage  `json:"view,omitempty"`
	// Of both, again and again.
	Alive bool `json:"alive,omitempty"`
}

type (
	joinMessage struct {
		RunID string            `json:"run_id"`
		Host  string            `json:"host"`
		PID   int               `json:"pid"`
		Roles []launchcore.Role `json:"roles"`
		Wish  int               `json:"wish"`
		// Attempt and Restarts say how far the job had got with a host that is gone.
		Attempt  int `json:"attempt,omitempty"`
		Restarts int `json:"restarts,omitempty"`
		// Watches says that somebody looks at the job on this node.
		Watches bool `json:"watches,omitempty"`
	}
	failedMessage struct {
		Attempt  int    `json:"attempt"`
		Sentence string `json:"sentence"`
		Blame    int    `json:"blame"`
	}
	endedMessage struct {
		failedMessage
		OK bool `json:"ok"`
	}
	leaveMessage struct {
		Reason string `json:"reason"`
	}
	beginMessage struct {
		launchcore.Assignment
		Addr string `json:"addr"`
		Port int    `json:"port"`
		// Roster has the first of the nodes.
		Roster []NodeStatus `json:"roster,omitempty"`
		// Watched asks this node to tell the state of its ranks again and again.
		Watched bool `json:"watched,omitempty"`
	}
	stopMessage struct {
		Reason string `json:"reason"`
		Linger bool   `json:"linger,omitempty"`
	}
	dismissMessage struct {
		OK       bool   `json:"ok"`
		Sentence string `json:"sentence"`
	}
	waitingMessage struct {
		Here int `json:"here"`
		Min  int `json:"min"`
		Max  int `json:"max"`
		// Numbers are those that the nodes which are here wish to have, if all of them wish for one.
		Numbers []int `json:"numbers,omitempty"`
	}
	examineMessage struct {
		ID    int             `json:"id"`
		Asker launchcore.Node `json:"asker"` // filled in by the host
	}
	seenMessage struct {
		examineMessage
		Job json.RawMessage `json:"job"`
	}
)

// workers counts the workers of a node; negative for one that makes no sense.
func (m *joinMessage) workers() int {
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
	// maxMessage bounds a line.
	maxMessage = 1 << 20
	// sayTime bounds a write.
	sayTime = 5 * time.Second
)

// wire is a connection between launchers.
type wire struct {
	net.Conn
	lines   *bufio.Scanner
	silence time.Duration // after which the other side is given up
}

// aliveEvery is how often each side says that it is there: several times within the silence that is allowed.
func (w *wire) aliveEvery() time.Duration {
	return max(time.Millisecond, min(time.Second, w.silence/4))
}

func newWire(c net.Conn, silence time.Duration) *wire {
	w := &wire{Conn: c, lines: bufio.NewScanner(c), silence: silence}
	w.lines.Buffer(make([]byte, 0, 4096), maxMessage)
	return w
}

// receive returns the next message that is more than a sign of life.
func (w *wire) receive() (message, error) {
	for {
		var m message
		_ = w.SetReadDeadline(time.Now().Add(w.silence))
		if !w.lines.Scan() {
			if err := w.lines.Err(); err != nil {
				return m, err
			}
			return m, net.ErrClosed
		}
		if err := json.Unmarshal(w.lines.Bytes(), &m); err != nil {
			return m, fmt.Errorf("launch: a message that makes no sense: %w", err)
		}
		if !m.Alive {
			return m, nil
		}
	}
}

func (w *wire) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = w.SetWriteDeadline(time.Now().Add(sayTime))
	_, err = w.Write(append(b, '\n'))
	return err
}
