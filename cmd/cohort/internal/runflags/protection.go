// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cohort-dist/cohort/launch"
)

const (
	// EnvToken holds the token of the job. "cohort run" takes it out of its environment, which its workers inherit.
	EnvToken = "COHORT_TOKEN" //nolint:gosec // the name of a variable
	// EnvTokenFile names a file that holds the token.
	EnvTokenFile = "COHORT_TOKEN_FILE" //nolint:gosec // as above
	// EnvPlaintext is --insecure-plaintext.
	EnvPlaintext = "COHORT_INSECURE_PLAINTEXT"
	// maxTokenFile bounds the file.
	maxTokenFile = 4096
)

// errTokenValue refuses what would show the secret to every user of the host.
var errTokenValue = errors.New(
	"--token does not exist, because every user of this host can read the arguments of a process: write the token to a file, and give " +
		"--token-file FILE; --token-file /dev/stdin reads it from a pipe")

// protection reads how the launchers of several nodes recognise each other.
func (o *Options) protection(v values, sys System) error {
	p := launch.Protection{CertFile: v["tls-cert"], KeyFile: v["tls-key"], CAFile: v["tls-ca"]}
	given := v["insecure-plaintext"] != ""
	if given && (v["token-file"] != "" || p.CertFile != "") {
		return errors.New("--insecure-plaintext excludes --token-file and --tls-cert")
	}
	if o.Nodes.Max == 1 || given {
		o.Nodes.Protection = launch.Protection{Plaintext: given}
		return nil
	}
	own := p.CertFile != "" || p.KeyFile != "" || p.CAFile != ""
	if v["token-file"] != "" || !own {
		var err error
		if p.Token, err = o.token(v["token-file"], sys); err != nil {
			return err
		}
	}
	if text, _ := sys.Lookup(EnvPlaintext); text == "1" || text == "true" {
		p.Plaintext = p.Token == "" && !own
	}
	o.Nodes.Protection = p
	return nil
}

// token returns the text of the token, "" if there is none: of the option, else of the variables.
func (o *Options) token(file string, sys System) (string, error) {
	from := "--token-file"
	if file == "" {
		file, _ = sys.Lookup(EnvTokenFile)
		from = EnvTokenFile
	}
	if file == "" {
		text, _ := sys.Lookup(EnvToken)
		return strings.TrimSpace(text), nil
	}
	text, others, err := sys.ReadSecret(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	if others {
		o.note("other users of this host can read the token in %s: chmod 600 it, and make a new one", file)
	}
	if strings.TrimSpace(text) == "" {
		return "", fmt.Errorf("%s: %s is empty", from, file)
	}
	return strings.TrimSpace(text), nil
}

// ReadSecret reads a small file, and reports whether other users of this host can.
func ReadSecret(name string) (text string, others bool, err error) {
	f, err := os.Open(name) //nolint:gosec // the user names it
	if err != nil {
		return "", false, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err == nil && len(b) > maxTokenFile {
		err = fmt.Errorf("%s has more than %d bytes: it is not a token", name, maxTokenFile)
	}
	return string(b), info.Mode().IsRegular() && info.Mode()&0o007 != 0, err
}
