// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestExecute(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args           []string
		fail           error
		code           int
		url, complaint string
	}{
		{[]string{"x"}, nil, 0, "env://", ""},
		{[]string{"x", "tcp://h:1"}, nil, 0, "tcp://h:1", ""},
		{[]string{"x", "tcp://h:1"}, errors.New("no such host"), 1, "tcp://h:1", "no such host\n"},
		{[]string{"/tmp/x", "--help"}, nil, 2, "", "usage: x [URL]"},
		{[]string{"x", "a", "b"}, nil, 2, "", "usage: x [URL]"},
	} {
		var complaints bytes.Buffer
		url := ""
		code := execute(c.args, io.Discard, &complaints, func(_ context.Context, u string, _ io.Writer) error {
			url = u
			return c.fail
		})
		if code != c.code || url != c.url || !strings.HasPrefix(complaints.String(), c.complaint) {
			t.Errorf("%q: code %d, url %q, %q", c.args, code, url, complaints.String())
		}
	}
}
