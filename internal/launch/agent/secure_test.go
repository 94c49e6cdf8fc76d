// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

// TestRefusedBy: each way in which a handshake with a host fails has one sentence, and only what may be a store or a host that drops
// strangers is tried again.
func TestRefusedBy(t *testing.T) {
	t.Parallel()
	token, err := jobtoken.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	creds, err := Protection{Token: &token}.credentials(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	j := &Job{creds: creds, asked: context.Background()}
	refused := &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			fmt.Errorf("%w: it begins", jobcert.ErrClock),
			"the clock of this computer does not agree with that of the launcher at node0:1: its certificate is not valid yet: it begins",
		},
		{jobcert.ErrExpired, "the launcher at node0:1 is not accepted: its certificate has expired; make a new token"},
		{jobcert.ErrForeign, "its certificate is not one of this job. This launcher has the token " + token.ID()},
		{tls.RecordHeaderError{}, "what listens at node0:1 does not use TLS: a launcher of an older version of cohort"},
		{refused, "the launcher at node0:1 does not accept this one"},
	} {
		if got := j.refusedBy("node0:1", c.err); !strings.Contains(got.Error(), c.want) || errors.Is(got, errSilent) ||
			cohort.CodeOf(got) != cohort.Mismatch {
			t.Errorf("%v: %v", c.err, got)
		}
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded} {
		if got := j.refusedBy("node0:1", err); !errors.Is(got, errSilent) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// TestAnnounceProtection: where others can reach the job it is said once what is protected and what is not. A job in plain text without an
// id is called open, and each time another id is proposed.
func TestAnnounceProtection(t *testing.T) {
	t.Parallel()
	token, err := jobtoken.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	with := Protection{Token: &token}
	const ranks = "the connections among its ranks (gloo, NCCL, TensorPipe, TCP of Go ranks) are not protected"
	const open = "the store of the job and " + ranks
	proposed := map[string]bool{}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{RunID: DefaultRunID, Endpoint: "10.1.2.3:29400"}, "every computer that reaches 10.1.2.3:29400 can join this job"},
		{Config{RunID: DefaultRunID, Endpoint: "node0:29400"}, "every computer that reaches node0:29400 can join this job"},
		{Config{RunID: DefaultRunID, Endpoint: "localhost:29400"}, ""},
		{Config{RunID: DefaultRunID, Endpoint: "127.0.0.1:29400"}, ""},
		{Config{RunID: DefaultRunID, Endpoint: "127.0.0.1:29400", LocalAddr: "127.0.0.2"}, ""},
		{Config{RunID: "given", Endpoint: "127.0.0.1:29400", LocalAddr: "10.1.2.3"}, "--token-file FILE), and " + open},
		{Config{RunID: "given", Endpoint: "10.1.2.3:29400"}, "launchers meet at 10.1.2.3:29400 without TLS (make a token"},
		{
			Config{RunID: "given", Endpoint: "10.1.2.3:29400", Protection: Protection{Plaintext: true}},
			"--insecure-plaintext: the launchers meet at 10.1.2.3:29400 without TLS, and " + open,
		},
		{
			Config{RunID: "given", Endpoint: "10.1.2.3:29400", Protection: with},
			"the launchers meet at 10.1.2.3:29400, and all that launchers and store send each other is protected by TLS, with the token " +
				token.ID() + "; " + ranks,
		},
		{
			Config{RunID: "given", Endpoint: "10.1.2.3:29400", Protection: with, MaxMembers: 2, MaxNodes: 2},
			"the store of the job is at 10.1.2.3:29400, and all that launchers and store send each other is protected by TLS, with the " +
				"token " + token.ID() + "; " + ranks,
		},
		{
			Config{RunID: "given", Endpoint: "10.1.2.3:29400", MaxMembers: 2, MaxNodes: 2},
			"the store of the job, at 10.1.2.3:29400, and " + ranks,
		},
	} {
		var said strings.Builder
		j := &Job{cfg: c.cfg, screen: newScreen(Screen{Err: &said})}
		if j.creds, err = c.cfg.Protection.credentials(t.Logf); err != nil {
			t.Fatal(err)
		}
		j.announceProtection()
		j.announceProtection()
		_, id, found := strings.Cut(said.String(), "give all nodes --rdzv-id ")
		if !strings.Contains(said.String(), c.want) || (c.want == "") != (said.Len() == 0) || strings.Count(said.String(), "\n") > 1 ||
			found && (len(id) < 20 || proposed[id]) {
			t.Errorf("%+v: %q", c.cfg, said.String())
		}
		proposed[id] = true
	}
}
