// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collargs

import "github.com/cohort-dist/cohort"

// Objects of any length travel in two parts: their sizes, then their bytes, one behind the other or each filled up to the largest.

// Announced adds up the sizes of objects that a rank has announced, and refuses more than most bytes: no memory is taken for them.
func Announced(name string, from cohort.Rank, sizes []int64, most int64) (int, error) {
	total := int64(0)
	for _, n := range sizes {
		if n < 0 || n > most || total+n > most {
			err := cohort.Newf(name, cohort.TooLarge, "rank %d announces an object of %d bytes, at most %d are taken", from, n, most)
			err.Rank = from
			return 0, err
		}
		total += n
	}
	return int(total), nil
}

// Padded fills an object up to so many bytes.
func Padded(object []byte, size int) []byte {
	b := make([]byte, size)
	copy(b, object)
	return b
}

// Unpad returns the objects in blocks that were filled up to stride bytes each.
func Unpad(all []byte, stride int, sizes []int64) [][]byte {
	objects := make([][]byte, len(sizes))
	for i, n := range sizes {
		at := i * stride
		objects[i] = all[at : at+int(n) : at+int(n)]
	}
	return objects
}

// Cut cuts data into objects of the given sizes.
func Cut(objects [][]byte, data []byte, sizes []int64) {
	for i, n := range sizes {
		objects[i] = data[:n:n]
		data = data[n:]
	}
}
