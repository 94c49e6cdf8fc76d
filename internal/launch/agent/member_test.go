// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// TestStranger: a program that has the port of the rendezvous and is not a launcher is not reported as a lost launcher.
func TestStranger(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	addr := server.Addr().String()
	for host, want := range map[bool]string{
		true:  fmt.Sprintf("pid %d (", os.Getpid()),
		false: "what listens at the rendezvous " + addr + " does not answer as a launcher of the job does: it has not responded for 100ms",
	} {
		if host && runtime.GOOS != "linux" {
			continue // only there a port tells its owner
		}
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		j := &Job{cfg: Config{Endpoint: addr, Host: &host, Silence: 100 * time.Millisecond}, asked: t.Context()}
		m := newMember(j, conn, addr)
		for range m.incoming { // until it gives up
			continue
		}
		if err := m.hostLost(); j.end.Job.Code != cohort.Protocol || err != nil || !strings.HasPrefix(j.end.Job.Sentence, want) ||
			!strings.HasSuffix(j.end.Job.Sentence, "does not answer as a launcher of the job does: it has not responded for 100ms") {
			t.Errorf("host %v: %v, %s", host, err, j.end.Job.Sentence)
		}
		m.close()
	}
}

// TestHostThatEndsAtOnce: what is known of a host whose connection ends early depends on what it has said before.
func TestHostThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ says, want string }{
		"nothing": {
			"",
			"has ended the connection before it identified itself: a launcher that ended there at this moment, or another program",
		},
		"a heartbeat": {`{"alive":true}` + "\n", "the launcher that hosts the rendezvous at HOST is lost: its connection has ended"},
		"something else": {
			"SSH-2.0-OpenSSH_9.2\r\n",
			"what listens at the rendezvous HOST does not answer as a launcher of the job does: it sent something else",
		},
	} {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := server.Addr().String()
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = theirs.Write([]byte(c.says))
		_ = theirs.Close()
		_ = server.Close()
		j := &Job{cfg: Config{Endpoint: addr, Host: new(false), Silence: time.Minute}, asked: t.Context()}
		m := newMember(j, conn, addr)
		for range m.incoming { // until it has ended
			continue
		}
		if err := m.hostLost(); err != nil || !strings.HasSuffix(strings.ReplaceAll(j.end.Job.Sentence, addr, "HOST"), c.want) {
			t.Errorf("%s: %v, %s", name, err, j.end.Job.Sentence)
		}
		m.close()
	}
}

// TestLossOfHostCounts: the loss of the launcher that hosts the rendezvous costs a restart if an attempt was lost with it,
// and nothing while nodes gather for the first.
func TestLossOfHostCounts(t *testing.T) {
	t.Parallel()
	for attempts, want := range []int{0, 1} {
		m := &member{job: &Job{}, replaceable: true}
		m.job.seen.attempt = attempts
		if err := m.hostLost(); !errors.Is(err, errHostLost) || m.job.seen.restarts != want {
			t.Errorf("after %d attempts: %v, %d restarts, want %d", attempts, err, m.job.seen.restarts, want)
		}
	}
}
