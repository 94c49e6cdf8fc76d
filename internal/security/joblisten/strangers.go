// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblisten

import (
	"container/list"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/fdlimit"
)

// mostStrangers and leastStrangers bound the strangers, at one in descriptorShare of the descriptors that the process may have.
const (
	mostStrangers, leastStrangers = 256, 16
	descriptorShare               = 8
)

// acceptPause is how long a process without descriptors waits for some.
const acceptPause = 100 * time.Millisecond

// Strangers are the connections to a port that have not shown that they are of the job. They are few, and when there are more, the oldest
// one of the address that has the most of them is closed: descriptors and memory of the launcher are for the job.
type Strangers struct {
	most int
	mu   struct {
		sync.Mutex
		byHost map[string]*list.List // of *Stranger, the oldest first
		n      int
		ended  bool
	}
}

// Stranger is one of them.
type Stranger struct {
	net.Conn
	host  string
	place *list.Element // nil once it is not a stranger any more
}

// NewStrangers returns the strangers of a port: none so far.
func NewStrangers() *Strangers {
	return newStrangers(fdlimit.Share(descriptorShare, leastStrangers, mostStrangers))
}

func newStrangers(most int) *Strangers {
	s := &Strangers{most: most}
	s.mu.byHost = map[string]*list.List{}
	return s
}

// Accept has clients met until the listener is closed, or quit.
func (s *Strangers) Accept(l net.Listener, quit <-chan struct{}, meet func(*Stranger)) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			meet(s.add(c))
		case errors.Is(err, net.ErrClosed):
			return
		case (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && s.drop():
		default:
			select {
			case <-time.After(acceptPause):
			case <-quit:
				return
			}
		}
	}
}

// add counts a connection, and closes others if there are too many.
func (s *Strangers) add(c net.Conn) *Stranger {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	one := &Stranger{Conn: c, host: host}
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
func (s *Strangers) drop() bool {
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

func (s *Strangers) dropLocked() {
	var most *list.List
	for _, same := range s.mu.byHost {
		if most == nil || same.Len() > most.Len() {
			most = same
		}
	}
	oldest := most.Front().Value.(*Stranger) //nolint:errcheck // all of them are
	s.removeLocked(oldest)
	_ = oldest.Close()
}

// Remove says that a connection is of the job or has ended. It reports false if the connection was closed meanwhile, to make room.
func (s *Strangers) Remove(one *Stranger) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	still := one.place != nil
	s.removeLocked(one)
	return still
}

func (s *Strangers) removeLocked(one *Stranger) {
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

// End closes all, and those that are still to come.
func (s *Strangers) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.mu.ended = true; s.mu.n > 0; {
		s.dropLocked()
	}
}
