// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeconf

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// wantRefused checks that a URL is refused at once, with PyTorch's words.
func wantRefused(t *testing.T, url, words string, opts ...rendezvous.Option) {
	t.Helper()
	m, err := rendezvous.Join(t.Context(), url, opts...)
	if err == nil {
		_ = m.Close()
		t.Errorf("%s was accepted", url)
		return
	}
	if !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v; want %q", url, err, words)
	}
}

func TestRendezvousUnknownHandler(t *testing.T) {
	wantRefused(t, "invalid://", "No rendezvous handler")
}

func TestRendezvousURLWithNodeParams(t *testing.T) {
	wantRefused(t, "file://foo?rank=12&world_size=16", "has node-specific arguments",
		rendezvous.WithRank(12), rendezvous.WithWorldSize(16))
}

func env(vars map[string]string) rendezvous.Option {
	return rendezvous.WithEnv(func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	})
}

func TestRendezvousEnvNominal(t *testing.T) {
	m := join(t, "env://", env(map[string]string{
		"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": freePort(t),
	}))
	wantPlace(t, m, 0, 1)
	if err := m.Store().Set(t.Context(), "key0", []byte("value0")); err != nil {
		t.Fatal(err)
	}
	wantGet(t, m.Store(), "key0", "value0")
}

func TestRendezvousFileCommonErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	wantRefused(t, "file://?rank=0&world_size=1", "path missing")
	wantRefused(t, "file://"+path+"?world_size=1", "rank parameter missing")
	wantRefused(t, "file://"+path+"?rank=0", "size parameter missing")
}

func TestRendezvousFileNominal(t *testing.T) {
	path := "file://" + filepath.Join(t.TempDir(), "store") + "?world_size=2"
	m0 := join(t, path+"&rank=0")
	wantPlace(t, m0, 0, 2)
	m1 := join(t, path+"&rank=1")
	wantPlace(t, m1, 1, 2)
	if err := m0.Store().Set(t.Context(), "key0", []byte("value0")); err != nil {
		t.Fatal(err)
	}
	if err := m1.Store().Set(t.Context(), "key1", []byte("value1")); err != nil {
		t.Fatal(err)
	}
	wantGet(t, m1.Store(), "key0", "value0")
	wantGet(t, m0.Store(), "key1", "value1")
}

func TestRendezvousTCPCommonErrors(t *testing.T) {
	wantRefused(t, "tcp://127.0.0.1?rank=0&world_size=1", "port number missing")
	wantRefused(t, "tcp://127.0.0.1:23456?world_size=1", "rank parameter missing")
	wantRefused(t, "tcp://127.0.0.1:23456?rank=0", "size parameter missing")
}

func TestRendezvousTCPDNSTimeout(t *testing.T) {
	for _, rank := range []string{"0", "1"} {
		begin := time.Now()
		m, err := rendezvous.Join(t.Context(), "tcp://dnsnotexist.invalid:"+freePort(t)+"?world_size=2&rank="+rank,
			rendezvous.WithTimeout(time.Second), rendezvous.WithDialOptions(tcpstore.WithNameRetry())) // PyTorch always does
		if err == nil {
			_ = m.Close()
			t.Fatalf("rank %s: joined at a host that does not exist", rank)
		}
		if !regexp.MustCompile("client socket has timed out after.*dnsnotexist").MatchString(err.Error()) {
			t.Errorf("rank %s: %v", rank, err)
		}
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("rank %s: it took %v", rank, took)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(freeURL(t))
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func TestRendezvousTCPNominal(t *testing.T) {
	m := join(t, freeURL(t)+"?world_size=1&rank=0")
	wantPlace(t, m, 0, 1)
	if err := m.Store().Set(t.Context(), "key0", []byte("value0")); err != nil {
		t.Fatal(err)
	}
	wantGet(t, m.Store(), "key0", "value0")
}

func TestRendezvousTCPTimeoutSet(t *testing.T) {
	const timeout = time.Second
	m := join(t, freeURL(t)+"?world_size=1&rank=0", rendezvous.WithTimeout(timeout))
	wantTimeout(t, m.Store(), "nonexistant key", timeout)
	// PyTorch's test gives the rendezvous more and the store less.
	m = join(t, freeURL(t)+"?world_size=1&rank=0", rendezvous.WithTimeout(time.Minute))
	m.Store().SetTimeout(timeout / 10)
	wantTimeout(t, m.Store(), "nonexistant key", timeout/10)
}

// wantTimeout checks that a wait for a key that is never set ends in time, and that the error has PyTorch's text.
func wantTimeout(t *testing.T, s store.Store, key string, timeout time.Duration) {
	t.Helper()
	begin := time.Now()
	_, err := s.Get(t.Context(), key)
	if took := time.Since(begin); !errors.Is(err, store.ErrTimeout) || took < timeout/2 || took > 20*time.Second {
		t.Fatalf("after %v: %v", took, err)
	}
	if words := fmt.Sprintf("wait timeout after %dms, keys: /%s", timeout.Milliseconds(), key); !strings.Contains(err.Error(), words) {
		t.Errorf("%v; want %q", err, words)
	}
}

func TestRendezvousTCPTimeoutDoesNotBreakClient(t *testing.T) {
	m := join(t, freeURL(t)+"?world_size=1&rank=0", rendezvous.WithTimeout(time.Minute))
	m.Store().SetTimeout(100 * time.Millisecond)
	wantTimeout(t, m.Store(), "the_key", 100*time.Millisecond)
	m.Store().SetTimeout(20 * time.Second)
	if err := m.Store().Set(t.Context(), "the_key", []byte("x")); err != nil {
		t.Error(err)
	}
	wantGet(t, m.Store(), "the_key", "x")
}

// The choice of PyTorch's server implementation is accepted wherever PyTorch accepts it, and changes nothing here.
func TestRendezvousUseLibUV(t *testing.T) {
	for _, choice := range []string{"0", "1"} {
		m := join(t, freeURL(t)+"?world_size=1&rank=0&use_libuv="+choice)
		if err := m.Store().Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		wantGet(t, m.Store(), "k", "v")
		m = join(t, "env://", env(map[string]string{
			"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": freePort(t), "USE_LIBUV": choice,
		}))
		if err := m.Store().Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		wantGet(t, m.Store(), "k", "v")
	}
}
