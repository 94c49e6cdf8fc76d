// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
)

// identity says which process a rank is. Ranks of this module claim their rank at the store with it when they join,
// because PyTorch's join is a bare counter that cannot say which rank is missing or joined twice.
type identity struct {
	Host string
	PID  int
	// Tag tells processes apart that have the same host name and process id, as in containers. It may be empty.
	Tag string
	// Counted is set once the rank is part of PyTorch's counter.
	Counted bool
	// Gone is set by the host when the connection of a rank that joined has ended. It is not part of the text.
	Gone bool
}

const (
	countedMark = ", joined"
	pidMark     = " pid "
	tagMark     = " #"
)

// text is the identity as the store keeps it and "cohort store top" shows it: "nodea pid 7 #123, joined".
func (id identity) text() string {
	text := id.String()
	if id.Tag != "" {
		text += tagMark + id.Tag
	}
	if id.Counted {
		text += countedMark
	}
	return text
}

// parseIdentity reads what text wrote. Other clients may claim a rank with any text; that becomes the host.
func parseIdentity(text string) identity {
	var id identity
	text, id.Counted = strings.CutSuffix(text, countedMark)
	text, id.Tag, _ = strings.Cut(text, tagMark)
	id.Host = text
	if at := strings.LastIndex(text, pidMark); at >= 0 {
		if pid, err := strconv.Atoi(text[at+len(pidMark):]); err == nil {
			id.Host, id.PID = text[:at], pid
		}
	}
	return id
}

// sameProcess reports whether both are one process.
func (id identity) sameProcess(other identity) bool {
	return id.Host == other.Host && id.PID == other.PID && id.Tag == other.Tag
}

// String returns the part for people.
func (id identity) String() string {
	host := id.Host
	if len(host) > 256 {
		host = host[:256]
	}
	return host + pidMark + strconv.Itoa(id.PID)
}

// roster is who joined a world of a known size, as far as the host knows.
type roster struct {
	size   int
	joined int64                    // PyTorch's counter
	known  map[cohort.Rank]identity // ranks that published their identity
}

// full reports whether the counter has reached the world size, which is all that PyTorch looks at.
func (r roster) full() bool { return r.joined >= int64(r.size) }

// missing returns the ranks that have not published that they joined.
func (r roster) missing() []cohort.Rank {
	var ranks []cohort.Rank
	for rank := range cohort.Rank(r.size) {
		if _, ok := r.known[rank]; !ok {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// strangers counts the processes that joined without telling their rank: PyTorch's.
func (r roster) strangers() int64 { return max(r.joined-int64(len(r.known)), 0) }

// absent names the ranks that are missing, and those that joined and left: these are counted, but will not take part.
func (r roster) absent() string {
	words := r.lacking()
	var left []cohort.Rank
	for rank, id := range r.known {
		if id.Gone {
			left = append(left, rank)
		}
	}
	if len(left) > 0 {
		slices.Sort(left)
		words += "; joined and left again: " + rankList(left)
	}
	return words
}

func (r roster) lacking() string {
	if r.full() {
		return "no rank is missing"
	}
	candidates, lacking, strangers := r.missing(), int64(r.size)-r.joined, r.strangers()
	if int64(len(candidates)) == lacking || strangers == 0 {
		return "missing: " + rankList(candidates)
	}
	are, clients := "are", "clients"
	if lacking == 1 {
		are = "is"
	}
	if strangers == 1 {
		clients = "client"
	}
	return fmt.Sprintf("%d of %s %s missing (%d %s joined without giving a rank, as PyTorch clients do)",
		lacking, rankList(candidates), are, strangers, clients)
}

// awaited says in words who is waited for, as the end of "rank 0 waits for".
func (r roster) awaited() string {
	candidates, lacking := r.missing(), int64(r.size)-r.joined
	have := "which have not joined"
	if lacking == 1 {
		have = "which has not joined"
	}
	if int64(len(candidates)) == lacking || r.strangers() == 0 {
		return rankList(candidates) + ", " + have
	}
	return fmt.Sprintf("%d of %s, %s", lacking, rankList(candidates), have)
}

// present lists the ranks that published their identity, for the error of a join that failed.
func (r roster) present() string {
	ranks := make([]cohort.Rank, 0, len(r.known))
	for rank := range r.known {
		ranks = append(ranks, rank)
	}
	slices.Sort(ranks)
	const most = 8
	var parts []string
	for i, rank := range ranks {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(ranks)-most))
			break
		}
		parts = append(parts, fmt.Sprintf("rank %d on %s", rank, r.known[rank]))
	}
	return strings.Join(parts, ", ")
}

// rankList writes ranks shortly: "rank 3", "ranks 1, 4-7 and 9".
func rankList(ranks []cohort.Rank) string {
	if len(ranks) == 0 {
		return "no rank"
	}
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		switch j {
		case i:
			parts = append(parts, strconv.Itoa(int(ranks[i])))
		case i + 1:
			parts = append(parts, strconv.Itoa(int(ranks[i])), strconv.Itoa(int(ranks[j])))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	const most = 16
	if len(parts) > most {
		parts = append(parts[:most], "more")
	}
	if len(ranks) == 1 {
		return "rank " + parts[0]
	}
	if len(parts) == 1 {
		return "ranks " + parts[0]
	}
	return "ranks " + strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}

// self returns the identity of this process.
func self() identity {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown-host"
	}
	return identity{Host: strings.ReplaceAll(host, tagMark, "-"), PID: os.Getpid(), Tag: processTag()}
}

// processTag tells this process from others with the same host name and process id: by its process-id namespace and the
// time it started. Where /proc does not say, it is empty.
func processTag() string {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return ""
	}
	// The second field is the command in parentheses and may hold spaces; the start time is the 22nd.
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	const startTime = 22 - 3
	if len(fields) <= startTime {
		return ""
	}
	namespace = strings.TrimSuffix(strings.TrimPrefix(namespace, "pid:["), "]")
	return namespace + "." + fields[startTime]
}
