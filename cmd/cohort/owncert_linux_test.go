// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// ownCertificate writes an authority and a certificate of it, and returns the options that name the files.
func ownCertificate(t *testing.T, leaf x509.Certificate) []string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte, err error) string {
		file := filepath.Join(dir, name)
		if err == nil {
			err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	signer, err := jobcert.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := jobcert.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	ca := x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for i, c := range []*x509.Certificate{&ca, &leaf} {
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(int64(i+1)), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	root, err := x509.CreateCertificate(rand.Reader, &ca, &ca, signer.Public(), signer)
	caFile := write("ca.pem", "CERTIFICATE", root, err)
	der, err := x509.CreateCertificate(rand.Reader, &leaf, &ca, key.Public(), signer)
	certFile := write("cert.pem", "CERTIFICATE", der, err)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	return []string{"--tls-cert", certFile, "--tls-key", write("key.pem", "PRIVATE KEY", der, err), "--tls-ca", caFile}
}

// TestOwnCertificates: launchers with certificates of the user's PKI, for the address of the endpoint or with one SPIFFE ID, form a job;
// one with a certificate of another authority is refused.
func TestOwnCertificates(t *testing.T) {
	t.Parallel()
	id := &url.URL{Scheme: "spiffe", Host: "corp", Path: "/ns/ml/sa/trainer"}
	for name, leaf := range map[string]x509.Certificate{
		"address": {IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, "SPIFFE": {URIs: []*url.URL{id}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := ownCertificate(t, leaf), ownCertificate(t, leaf)
			endpoint := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
			node := func(host string, certificate []string) *command {
				args := append([]string{
					"run", "--nnodes", "2", "--rdzv-id", "own", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
					"--rdzv-conf", "is_host=" + host, "--evidence", "-",
				}, certificate...)
				return (&lan{t: t}).run(cohortWith("", append(args, "sh", "-c", "echo rank=$$RANK")...))
			}
			first := node("1", ours)
			stranger := node("0", theirs)
			if code := stranger.ends(); code != 1 || !strings.Contains(stranger.String(), "is not a launcher of this job") ||
				!strings.Contains(stranger.String(), "Give all nodes certificates of one authority") {
				t.Errorf("a stranger: exit code %d\n%s", code, stranger)
			}
			second := node("0", ours)
			for i, c := range []*command{first, second} {
				if code := c.ends(); code != 0 || !strings.Contains(c.String(), "rank="+strconv.Itoa(i)) {
					t.Errorf("node %d: exit code %d\n%s", i, code, c)
				}
			}
			if !strings.Contains(first.String(), "has another token or certificate than this job") {
				t.Errorf("the host says\n%s", first)
			}
		})
	}
}
