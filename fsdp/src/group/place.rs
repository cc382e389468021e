//! Which of the processes this one is, as the environment says.

/// This process's place among the ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The rank, from 0, below `world_size`.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// The rank on this machine, from 0: the number of its GPU.
    pub local_rank: u32,
    /// The host name or address of rank 0.
    pub master_addr: String,
    /// The port that rank 0 listens on.
    pub master_port: u16,
}

/// Why the environment does not tell.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Variables that are not set.
    #[error("{} not set: each process needs RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT", list(.variables))]
    Missing {
        /// Their names.
        variables: Vec<&'static str>,
    },
    /// A variable with a value that makes no sense.
    #[error("{variable} is {value:?}, valid is {valid}")]
    Invalid {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is valid.
        valid: String,
    },
}

fn list(variables: &[&str]) -> String {
    format!("{} {}", variables.join(", "), if variables.len() == 1 { "is" } else { "are" })
}

impl Place {
    /// From `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`.
    ///
    /// # Errors
    /// When variables are missing (all of them are named), or one is not valid.
    pub fn from_environment() -> Result<Self, PlaceError> {
        Self::from_variables(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// As [`from_environment`](Place::from_environment), from variables that `look_up` knows.
    ///
    /// # Errors
    /// As there.
    pub fn from_variables(look_up: impl Fn(&str) -> Option<String>) -> Result<Self, PlaceError> {
        let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
        let values = names.map(look_up);
        let missing = names.into_iter().zip(&values).filter(|(_, value)| value.is_none());
        let variables: Vec<_> = missing.map(|(name, _)| name).collect();
        let [Some(rank), Some(world_size), Some(local_rank), Some(master_addr), Some(master_port)] = values else {
            return Err(PlaceError::Missing { variables });
        };
        let world_size = number("WORLD_SIZE", world_size, 1, i32::MAX as u32)?;
        let rank = number("RANK", rank, 0, world_size - 1)?;
        let local_rank = number("LOCAL_RANK", local_rank, 0, rank)?;
        let master_port = number("MASTER_PORT", master_port, 1, u16::MAX.into())?;
        if master_addr.trim().is_empty() {
            let valid = "the host name or address of rank 0".to_owned();
            return Err(PlaceError::Invalid { variable: "MASTER_ADDR", value: master_addr, valid });
        }
        let master_port = u16::try_from(master_port).expect("it was checked");
        Ok(Place { rank, world_size, local_rank, master_addr: master_addr.trim().to_owned(), master_port })
    }
}

fn number(variable: &'static str, value: String, least: u32, most: u32) -> Result<u32, PlaceError> {
    match value.trim().parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(PlaceError::Invalid { variable, value, valid: format!("a number from {least} to {most}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 5] =
        [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", " 29500 ")];

    fn with(name: &str, value: Option<&str>) -> Result<Place, PlaceError> {
        Place::from_variables(|asked| {
            let good = GOOD.iter().find(|(known, _)| *known == asked).map(|(_, value)| *value);
            if asked == name { value } else { good }.map(str::to_owned)
        })
    }

    #[test]
    fn a_place_is_read() {
        let place = with("", None).unwrap();
        let master_addr = "::1".to_owned();
        assert_eq!(place, Place { rank: 3, world_size: 4, local_rank: 1, master_addr, master_port: 29500 });
    }

    #[test]
    fn all_missing_variables_are_named_at_once() {
        let error = Place::from_variables(|name| name.starts_with("MASTER").then(|| "1".to_owned())).unwrap_err();
        assert_eq!(error, PlaceError::Missing { variables: vec!["RANK", "WORLD_SIZE", "LOCAL_RANK"] });
        assert!(error.to_string().starts_with("RANK, WORLD_SIZE, LOCAL_RANK are not set"), "{error}");
        assert!(with("RANK", None).unwrap_err().to_string().starts_with("RANK is not set"));
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_valid() {
        for (name, value, valid) in [
            ("RANK", "4", "a number from 0 to 3"),
            ("RANK", "-1", "a number from 0 to 3"),
            ("WORLD_SIZE", "0", "a number from 1 to 2147483647"),
            ("WORLD_SIZE", "many", "a number from 1 to 2147483647"),
            ("LOCAL_RANK", "4", "a number from 0 to 3"),
            ("MASTER_PORT", "65536", "a number from 1 to 65535"),
            ("MASTER_PORT", "0", "a number from 1 to 65535"),
            ("MASTER_ADDR", " ", "the host name or address of rank 0"),
        ] {
            let variable = GOOD.iter().find(|(known, _)| *known == name).unwrap().0;
            let expected = PlaceError::Invalid { variable, value: value.into(), valid: valid.into() };
            assert_eq!(with(name, Some(value)), Err(expected));
        }
    }
}
