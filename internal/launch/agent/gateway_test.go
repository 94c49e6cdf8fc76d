// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// words is what a launcher prints.
type words struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// withToken is a launcher with a token, whose clock differs by so much.
func withToken(t *testing.T, token jobtoken.Token, off time.Duration) (*Job, *words) {
	t.Helper()
	said := &words{}
	j := &Job{screen: newScreen(Screen{Err: said}), asked: t.Context()}
	var err error
	if j.creds, err = jobtls.FromToken(token, func() time.Time { return time.Now().Add(off) }); err == nil {
		err = j.admitSelf()
	}
	if err != nil {
		t.Fatal(err)
	}
	return j, said
}

func newToken(t *testing.T) jobtoken.Token {
	t.Helper()
	token, err := jobtoken.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func gatewayOf(t *testing.T, j *Job, store string, change func(*tls.Config)) *storegate.Gateway {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := j.toStore(store)
	change(config)
	g, err := storegate.Serve(l, storegate.Options{Upstreams: []string{store}, TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// TestStoreForLaunchers: the store of a job with a token serves the workers behind the gateways of its launchers. A client without TLS, and
// launchers with another token or an expired certificate, get nothing; each has one sentence.
func TestStoreForLaunchers(t *testing.T) {
	t.Parallel()
	token := newToken(t)
	for name, c := range map[string]struct {
		token jobtoken.Token
		off   time.Duration
		want  string
	}{
		"launcher": {token, 0, ""},
		"plain": {
			want: "has connected to the store of the job without TLS and was refused: workers use the gateway of their own launcher",
		},
		"another token": {
			newToken(t), 0,
			"was refused by the store of the job, which accepts only launchers with the token or certificates of this job: " +
				"its certificate is not one of this job",
		},
		"expired": {token, -60 * 24 * time.Hour, "certificates of this job: its certificate has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, said := withToken(t, token, 0)
			s, err := j.listenStore("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			at, limit := s.Addr().String(), 60*time.Second
			if c.want != "" {
				limit = 300 * time.Millisecond
			}
			if name != "plain" {
				other, _ := withToken(t, c.token, c.off)
				believing := func(config *tls.Config) { // a stranger believes every server
					if c.want != "" {
						config.VerifyConnection = nil
					}
				}
				at = gatewayOf(t, other, at, believing).Addr().String()
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			client, err := tcpstore.Dial(ctx, at)
			if err == nil {
				_, err = client.Add(ctx, "n", 1)
				_ = client.Close()
			}
			if (err == nil) != (c.want == "") {
				t.Errorf("it is served: %v", err)
			}
			testkit.Until(t, "it is said", func() bool { return strings.Contains(said.String(), c.want) })
			if got := said.String(); strings.Count(got, "\n") > 1 || c.want == "" && got != "" {
				t.Errorf("the launcher says\n%s", got)
			}
		})
	}
}

// TestSharedStore: a launcher with a token that comes to a store which launchers share is told in one sentence if the store is not for it.
func TestSharedStore(t *testing.T) {
	t.Parallel()
	token := newToken(t)
	host, _ := withToken(t, token, 0)
	guarded, err := host.listenStore("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guarded.Close() }()
	plain, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	for name, c := range map[string]struct {
		store *tcpstore.Server
		token jobtoken.Token
		want  string
	}{
		"its own": {guarded, token, ""},
		"of another": {
			guarded, newToken(t), "is not a launcher of this job: its certificate is not one of this job: it is for another job. This",
		},
		"of no launch": {plain, token, "does not use TLS, and this launcher has a token or certificates"},
	} {
		j, _ := withToken(t, c.token, 0)
		j.cfg.Endpoint = c.store.Addr().String()
		raw, err := net.Dial("tcp", j.cfg.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := j.openShared(raw)
		if err == nil {
			_ = conn.Close()
		}
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		_ = raw.Close()
	}
}

// TestOlderHost: a launcher with a token does not use the store of a host that does not protect it.
func TestOlderHost(t *testing.T) {
	t.Parallel()
	j, _ := withToken(t, newToken(t), 0)
	m := &member{job: j, host: "node0:29400"}
	const want = "start all nodes with the same version"
	if err := m.checkStore(false); !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
	if err := m.checkStore(true); err != nil {
		t.Error(err)
	}
	m.job = &Job{}
	if err := m.checkStore(false); err != nil {
		t.Error(err)
	}
}
