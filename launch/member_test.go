// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

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

// TestStranger: a program that has the port of the rendezvous and is no launcher is not taken for a launcher that is gone.
func TestStranger(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	addr := server.Addr().String()
	for host, want := range map[Hosting]string{
		HostAlways: fmt.Sprintf("pid %d (", os.Getpid()),
		HostNever:  "what listens at the rendezvous " + addr + " does not answer as a launcher of the job does: it has not been heard of for 100ms",
	} {
		if host == HostAlways && runtime.GOOS != "linux" {
			continue // only there a port tells its owner
		}
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		j := &job{cfg: Config{Endpoint: addr, Host: host, Silence: 100 * time.Millisecond}, report: &Report{}, asked: t.Context()}
		m := newMember(j, conn, addr)
		for range m.incoming { // until it gives up
			continue
		}
		if err := m.hostGone(); !errors.Is(j.report.Err(), cohort.Protocol) || err != nil || !strings.HasPrefix(j.report.Sentence, want) || !strings.HasSuffix(j.report.Sentence, "does not answer as a launcher of the job does: it has not been heard of for 100ms") {
			t.Errorf("host %v: %v, %s", host, err, j.report.Sentence)
		}
		m.close()
	}
}

// TestHostThatEndsAtOnce: what is known of a host whose connection ends early depends on what it has said before.
func TestHostThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ says, want string }{
		"nothing":        {"", "has ended the connection before it said who it is: a launcher that ended there at this moment, or another program"},
		"a sign of life": {`{"alive":true}` + "\n", "the launcher that hosts the rendezvous at HOST is gone: its connection has ended"},
		"something else": {"SSH-2.0-OpenSSH_9.2\r\n", "what listens at the rendezvous HOST does not answer as a launcher of the job does: it says something else"},
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
		j := &job{cfg: Config{Endpoint: addr, Host: HostNever, Silence: time.Minute}, report: &Report{}, asked: t.Context()}
		m := newMember(j, conn, addr)
		for range m.incoming { // until it has ended
			continue
		}
		if err := m.hostGone(); err != nil || !strings.HasSuffix(strings.ReplaceAll(j.report.Sentence, addr, "HOST"), c.want) {
			t.Errorf("%s: %v, %s", name, err, j.report.Sentence)
		}
		m.close()
	}
}
