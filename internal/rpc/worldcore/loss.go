// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
)

// Loss is why the workers of a static world cannot do together what they wait for. The first one is in the store, under [KeyLost]: a
// worker has died, which another one has found; or it has given up its shutdown, which it says itself before it goes.
type Loss struct {
	Worker string
	Code   cohort.Code // why it has given up; zero: it has died
	Detail string
}

// maxLossDetail bounds the words in the store.
const maxLossDetail = 1 << 10

// GivenUp is the loss of a worker whose shutdown has failed. The others report its code, also that of a deadline, which is not their own.
func GivenUp(worker string, err error) Loss {
	l := Loss{Worker: worker, Code: cohort.CodeOf(err), Detail: err.Error()}
	if l.Code == cohort.Canceled || l.Code == cohort.Unknown { // what the others wait for was not canceled
		l.Code = cohort.Aborted
	}
	l.Detail = strings.ToValidUTF8(l.Detail[:min(len(l.Detail), maxLossDetail)], "")
	return l
}

// Text is how it stands in the store. The name of a worker has no line break.
func (l Loss) Text() string {
	if l.Code == 0 {
		return l.Worker
	}
	return l.Worker + "\n" + strconv.Itoa(int(l.Code)) + "\n" + l.Detail
}

// parseLoss reads it.
func parseLoss(text string) Loss {
	worker, why, gaveUp := strings.Cut(text, "\n")
	l := Loss{Worker: worker}
	if !gaveUp {
		return l
	}
	code, detail, _ := strings.Cut(why, "\n")
	n, err := strconv.ParseUint(code, 10, 8)
	if err != nil || n == 0 {
		n = uint64(cohort.Aborted)
	}
	l.Code, l.Detail = cohort.Code(n), detail
	return l
}

// among reports whether it is a worker of these.
func (l Loss) among(names []string) bool { return slices.Contains(names, l.Worker) }

// err is the error of a wait for the worker.
func (l Loss) err(rank int) *cohort.Error {
	if l.Code == 0 {
		return deathOf(l.Worker, rank, foundByOther, nil)
	}
	e := deathOf(l.Worker, rank, "it has given up its shutdown: "+l.Detail, nil)
	e.Code = l.Code
	return e
}
