//! PostgreSQL's types that sqlx does not know, in their binary form.

use outbox_store::RowRef;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo};
use sqlx::{ColumnIndex, Decode, Encode, Postgres, Row, Type};
use time::{Duration, OffsetDateTime};

use crate::error::unreadable;

const TID: PgTypeInfo = PgTypeInfo::with_oid(Oid(27));
const TID_ARRAY: PgTypeInfo = PgTypeInfo::with_oid(Oid(1010));
const INT8: u32 = 20;
const TIMESTAMPTZ: u32 = 1184;
const XID8: u32 = 5069;
const INT8_ARRAY: u32 = 1016;
const TIMESTAMPTZ_ARRAY: u32 = 1185;
const XID8_ARRAY: u32 = 271;

/// Where a row lies: block number and line, packed into a [`RowRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tid(pub(crate) RowRef);

impl Type<Postgres> for Tid {
    fn type_info() -> PgTypeInfo {
        TID
    }
}

impl PgHasArrayType for Tid {
    fn array_type_info() -> PgTypeInfo {
        TID_ARRAY
    }
}

impl Encode<'_, Postgres> for Tid {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        // Four bytes of block and two of line, which is the packed number without its upper two bytes.
        buffer.extend_from_slice(&self.0.0.to_be_bytes()[2..]);
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for Tid {
    fn decode(value: sqlx::postgres::PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let bytes: [u8; 6] = value.as_bytes()?.try_into()?;
        let mut packed = [0; 8];
        packed[2..].copy_from_slice(&bytes);
        Ok(Self(RowRef(u64::from_be_bytes(packed))))
    }
}

/// A value that is only kept for the next call: as it came, infinities included, in the type with this OID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opaque<const OID: u32>(Box<[u8]>);

pub(crate) type Timestamp = Opaque<TIMESTAMPTZ>;
pub(crate) type Xids = Opaque<XID8_ARRAY>;
pub(crate) type Seqs = Opaque<INT8_ARRAY>;
pub(crate) type Timestamps = Opaque<TIMESTAMPTZ_ARRAY>;

impl Timestamp {
    pub(crate) fn minus_infinity() -> Self {
        Self(Box::new(i64::MIN.to_be_bytes()))
    }
}

impl Xids {
    pub(crate) fn empty() -> Self {
        Self(empty_array(XID8))
    }
}

impl Seqs {
    pub(crate) fn empty() -> Self {
        Self(empty_array(INT8))
    }
}

impl Timestamps {
    pub(crate) fn empty() -> Self {
        Self(empty_array(TIMESTAMPTZ))
    }
}

fn empty_array(element: u32) -> Box<[u8]> {
    let no_dimensions = 0_i32.to_be_bytes();
    let no_nulls = 0_i32.to_be_bytes();
    [no_dimensions, no_nulls, element.to_be_bytes()].concat().into()
}

impl<const OID: u32> Type<Postgres> for Opaque<OID> {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(OID))
    }
}

impl<const OID: u32> Encode<'_, Postgres> for Opaque<OID> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }
}

impl<const OID: u32> Decode<'_, Postgres> for Opaque<OID> {
    fn decode(value: sqlx::postgres::PgValueRef<'_>) -> Result<Self, BoxDynError> {
        Ok(Self(value.as_bytes()?.into()))
    }
}

/// A time in a row. Infinities and years beyond 9999 become the nearest time that can be said.
pub(crate) fn time_at<I: ColumnIndex<PgRow> + std::fmt::Display>(
    row: &PgRow,
    column: I,
) -> Result<OffsetDateTime, sqlx::Error> {
    let raw = row.try_get_raw(&column)?;
    let bytes = raw.as_bytes().map_err(sqlx::Error::Decode)?;
    let micros: [u8; 8] = bytes.try_into().map_err(|_| unreadable(format!("{column} is no timestamp")))?;
    Ok(from_micros(i64::from_be_bytes(micros)))
}

fn from_micros(since_2000: i64) -> OffsetDateTime {
    const Y2000: OffsetDateTime = time::macros::datetime!(2000-01-01 00:00 UTC);
    Y2000.saturating_add(Duration::microseconds(since_2000))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn times_saturate() {
        assert_eq!(from_micros(0), datetime!(2000-01-01 00:00 UTC));
        assert_eq!(from_micros(-1_000_000), datetime!(1999-12-31 23:59:59 UTC));
        assert_eq!(from_micros(i64::MAX).year(), 9999);
        assert_eq!(from_micros(i64::MIN).year(), -9999);
    }

    #[test]
    fn an_empty_array_has_no_dimensions() {
        assert_eq!(&*Xids::empty().0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x13, 0xcd]);
    }
}
